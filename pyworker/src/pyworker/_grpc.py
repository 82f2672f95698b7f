"""Over gRPC: messages are lent on a stream of a manager that runs without a broker.

For each queue there is a stream, with a thread that hears what the manager says; what the worker says goes in the order in which
it was said. A reply stays in hand until the manager has answered that it is committed, and goes out once more on the next stream
if this one ends before. What is in hand when a stream ends stays in hand: its lease is taken up again on the next stream, at the
address of whoever is active then.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Any, Callable

from ._addresses import Address, Addresses, several
from ._grpc_delivery import GrpcDelivery, Telling
from ._grpc_session import End, Session
from ._http import ANSWER_SECONDS_MAX, EXTEND_ANSWERS_PER_LEASE, EXTEND_SECONDS_MIN, EXTENDS_PER_LEASE, STOP_SECONDS_MAX, checked_token
from ._work import RECONNECT_SECONDS_MAX, RECONNECT_SECONDS_MIN, TICK_SECONDS, Performer, Progress, Reply, error_reply, sleep

log = logging.getLogger("pyworker")

#: As many more messages are wanted at once: few enough for the manager's `grpc.credit_max`.
WANT_MAX = 100
#: How long the manager may take to end a stream after the worker's farewell, and to answer what is open before another one begins.
FAREWELL_SECONDS_MAX = 5.0

#: Why the manager does not take a reply that it could never take.
_REFUSED = ("malformed", "forbidden", "too_large")
_TOO_LARGE = "too_large"
_LEASE_EXPIRED = "lease expired"


class Transport:
    """Takes messages from queues of a manager."""

    def __init__(self, queues: list[str], server: str, prefetch: int, performer: Performer, *, token: str, lease: float) -> None:
        self.addresses = Addresses(server)
        self.metadata = [("authorization", f"Bearer {checked_token(token)}")] if token else []
        self.performer = performer
        self.lease = lease
        self._feeds = [Feed(self, queue, prefetch) for queue in queues]

    def run(self, stopping: Callable[[], bool]) -> None:
        """Serve until ``stopping``, through every restart of the manager."""
        for feed in self._feeds:
            feed.start()
        threading.Thread(target=self._extend_all, name="pyworker-leases", daemon=True).start()
        while not stopping():
            time.sleep(TICK_SECONDS)
        for feed in self._feeds:
            feed.take_no_more()
        for delivery in self.performer.not_begun():
            assert isinstance(delivery, GrpcDelivery)
            delivery.feed.leave(delivery)
        for feed in self._feeds:
            feed.hand_over()
        while any(feed.is_alive() for feed in self._feeds):
            for feed in self._feeds:
                feed.give_up_hopeless()
            time.sleep(TICK_SECONDS / 10)

    def _extend_all(self) -> None:
        while True:
            for feed in self._feeds:
                feed.extend_due()
            time.sleep(min(TICK_SECONDS, self.lease / EXTENDS_PER_LEASE / 4))


class Feed:
    """What brings the messages of a queue: one stream after the other."""

    def __init__(self, transport: Transport, queue: str, prefetch: int) -> None:
        self.transport = transport
        self.queue = queue
        self._prefetch = prefetch
        self._changed = threading.Condition()
        #: By their message ids.
        self._in_hand: dict[str, GrpcDelivery] = {}
        #: A message that came twice has two.
        self._by_receipt: dict[str, GrpcDelivery] = {}
        #: How many replies have been said and not been answered.
        self._replying = 0
        #: The stream on which things are said; None while there is none.
        self._session: Session | None = None
        #: The one that is to take its place at the end.
        self._successor: Session | None = None
        #: All whose end has not come.
        self._open: set[Session] = set()
        self._is_handing_over = False
        self._problem = "no stream"
        self._stopped_at: float | None = None
        self._has_left_some = False
        self._main = threading.Thread(target=self._serve, name=f"pyworker-stream-{queue}", daemon=True)
        #: Serves what is in hand at the end, while the stream that brought it ends.
        self._rest: threading.Thread | None = None

    def start(self) -> None:
        self._main.start()

    def is_alive(self) -> bool:
        return self._main.is_alive() or (self._rest is not None and self._rest.is_alive())

    # ---- one stream after the other

    def _serve(self) -> None:
        delay = RECONNECT_SECONDS_MIN
        tried: dict[Address, str] = {}
        addresses = self.transport.addresses
        while not self._is_over():
            self._prepare()
            session = Session(self, addresses.current, tried)
            end = session.run()
            if session.is_established:
                delay, tried = RECONNECT_SECONDS_MIN, {}
            if end.is_refusal:
                told, level, again = str(end), logging.ERROR, False
            else:
                tried[session.address] = str(end)
                addresses.leave(session.address)
                told, level, again = f"no connection to {several(tried)}", logging.WARNING, addresses.current not in tried
            self._ended(session, end)
            if again or self._is_over():
                continue
            tried = {}
            pause = delay * random.uniform(0.8, 1.2)
            log.log(level, "%s: %s; trying again in %.1f s", self.queue, told, pause)
            sleep(pause, self._is_over)
            delay = min(delay * 2, RECONNECT_SECONDS_MAX)

    def _is_over(self) -> bool:
        """For the thread that serves."""
        if self._rest is not None and threading.current_thread() is self._main:
            return True
        return self._stopped_at is not None and not self._in_hand

    def begin(self, session: Session) -> None:
        """A stream has begun: what is in hand goes along."""
        with self._changed:
            self._open.add(session)
            session.hello(self.queue, self.transport.lease, dict(session.address.query).get("vhost", ""))
            if self._session is None:
                self._session, self._is_handing_over = session, False
                self._say_replies()
            else:
                self._successor = session
            for delivery in self._in_hand.values():
                if delivery.reply is None and not delivery.cancellation.is_set:
                    delivery.extend_at = time.monotonic() + self.transport.lease / EXTENDS_PER_LEASE
                    session.extend(delivery, self.transport.lease)
            session.ask_for_a_sign()
            self._want()
            if self._stopped_at is not None and not self._in_hand:
                session.farewell()

    def _say_replies(self) -> None:
        assert self._session is not None
        for delivery in self._in_hand.values():
            if delivery.reply is not None and delivery.said_on is None:
                self._session.reply(delivery, delivery.reply)

    def _ended(self, session: Session, end: End) -> None:
        with self._changed:
            self._problem = str(end)
            self._open.discard(session)
            if self._session is session:
                self._session = None
            if self._successor is session:
                self._successor, self._is_handing_over = None, False
            left = [delivery for delivery in self._in_hand.values() if delivery.said_on is session]
            for delivery in left:
                delivery.said_on = None
            if self._session is not None:
                self._say_replies()
            elif left:
                others = f" and {len(left) - 1} more" if len(left) > 1 else ""
                log.warning("%s: its reply was not taken%s: %s; it goes on the next stream", left[0], others, end)
            for delivery in self._in_hand.values():
                if delivery.telling is not None and delivery.telling.session is session:
                    delivery.telling.answer(str(end))
            self._changed.notify_all()

    # ---- what the manager says

    def hear(self, session: Session, heard: Any) -> None:
        kind = heard.WhichOneof("say")
        with self._changed:
            if not session.is_established:
                session.is_established = True
                if session.tried:
                    log.info("goes on at %s, after %s", session.address.text, several(session.tried))
                log.info("consuming from %s at %s", self.queue, session.address.text)
            if kind == "batch":
                for taken in heard.batch.taken:
                    self._taken(session, taken)
                for message in heard.batch.messages:
                    self._take(session, message)
            elif kind == "message":
                self._take(session, heard.message)
            elif kind == "taken":
                self._taken(session, heard.taken)
            elif kind == "lease":
                session.extending.discard(heard.lease.receipt)
                self._leased(heard.lease.receipt)
            elif kind == "gone":
                session.extending.discard(heard.gone.receipt)
                self._gone(session, heard.gone)
            elif kind == "drain":
                session.is_draining = True
            elif kind == "batches":
                session.allow_batches(heard.batches)
            if session is self._successor and not session.extending:
                self._succeed(session)
            if self._is_handing_over:
                self._changed.notify_all()
            self._want()

    def _take(self, session: Session, message: Any) -> None:
        """Work on it, unless it is in hand already: then it stays in hand as this delivery."""
        session.credit -= 1
        if self._stopped_at is not None:
            # The end of the stream gives it back.
            return
        known = self._in_hand.get(message.message_id)
        if known is not None:
            known.receipts.append(message.receipt)
            known.is_lease_lost = False
            self._by_receipt[message.receipt] = known
            return
        delivery = GrpcDelivery(self, message)
        delivery.extend_at = time.monotonic() + self.transport.lease / EXTENDS_PER_LEASE
        self._in_hand[delivery.message_id] = delivery
        self._by_receipt[delivery.receipt] = delivery
        self.transport.performer.put(delivery)

    def _taken(self, session: Session, taken: Any) -> None:
        session.extending.discard(taken.receipt)
        delivery = self._by_receipt.get(taken.receipt)
        if delivery is None:
            return
        why = f"{taken.why_not} {taken.detail}".strip()
        if delivery.telling is not None:
            delivery.telling.answer("" if taken.changed else why)
        elif delivery.reply is None or delivery.said_on is not session:
            if taken.why_not in _REFUSED:
                log.warning("%s: its lease could not be extended: %s", delivery, why)
        elif taken.why_not == _TOO_LARGE and delivery.reply.type is None:
            log.error("%s: failed (not retryable): its reply is too large: %s", delivery, taken.detail)
            delivery.reply = error_reply(f"the reply has {len(delivery.reply.body)} bytes: {taken.detail}", retryable=False)
            session.reply(delivery, delivery.reply)
        else:
            if taken.why_not in _REFUSED:
                log.error("%s: the manager does not take its reply: %s", delivery, why)
            elif not taken.changed:
                log.info("%s: its reply changed nothing: %s", delivery, why)
            self._settle(delivery)

    def _leased(self, receipt: str) -> None:
        delivery = self._by_receipt.get(receipt)
        if delivery is not None:
            delivery.is_lease_lost = False

    def _gone(self, session: Session, gone: Any) -> None:
        delivery = self._by_receipt.get(gone.receipt)
        if delivery is None or delivery.receipt != gone.receipt:
            return
        if not gone.reason.startswith(_LEASE_EXPIRED):
            if not delivery.cancellation.is_set:
                log.info("%s: %s", delivery, gone.reason)
                delivery.cancellation.set(gone.reason)
        elif session is (self._successor or self._session) and not delivery.is_lease_lost:
            # Another worker has it: after a restart of the manager, say. The first reply counts. If that one loses its lease too,
            # this one is taken up again.
            delivery.is_lease_lost = True
            log.warning("%s: its lease has ended, and another worker may have it; the first reply counts", delivery)

    def _want(self) -> None:
        """As many messages as there is room for, but not a few at a time while more answers are to come."""
        session = self._session
        if session is None or session.is_draining or self._stopped_at is not None:
            return
        wanted = min(self._prefetch - len(self._in_hand), WANT_MAX) - session.credit
        if wanted > 0 and (session.credit == 0 or self._replying == 0 or wanted >= min(self._prefetch, WANT_MAX) // 4):
            session.want(wanted)

    # ---- for deliveries

    def progress(self, delivery: GrpcDelivery, progress: Progress) -> None:
        with delivery.turn:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_handing_over, FAREWELL_SECONDS_MAX)
                session = self._session
                if session is None:
                    log.warning("%s: progress could not be told: %s", delivery, self._problem)
                    return
                telling = delivery.telling = Telling(session)
                session.progress(delivery, progress.body)
            if not telling.answered.wait(ANSWER_SECONDS_MAX):
                # What comes later would be taken for the answer to the reply.
                session.abort("no answer came")
                telling.problem = "no answer came"
            with self._changed:
                delivery.telling = None
                self._changed.notify_all()
            if telling.problem:
                log.warning("%s: progress could not be told: %s", delivery, telling.problem)

    def reply(self, delivery: GrpcDelivery, reply: Reply) -> None:
        """Have it said until the manager has committed it; then the delivery is settled."""
        with delivery.turn, self._changed:
            delivery.reply, delivery.reply_since = reply, time.monotonic()
            self._replying += 1
            if self._session is not None:
                self._session.reply(delivery, reply)
            else:
                log.warning("%s: its reply was not taken: %s; it goes on the next stream", delivery, self._problem)

    def settled(self, delivery: GrpcDelivery) -> None:
        with self._changed:
            self._settle(delivery)
            self._want()

    def _settle(self, delivery: GrpcDelivery) -> None:
        if self._in_hand.pop(delivery.message_id, None) is None:
            return
        if delivery.reply is not None:
            self._replying -= 1
        for receipt in delivery.receipts:
            self._by_receipt.pop(receipt, None)
        if self._stopped_at is not None and not self._in_hand:
            for session in self._open:
                session.farewell()

    # ---- leases

    def extend_due(self) -> None:
        with self._changed:
            now, lease = time.monotonic(), self.transport.lease
            # While another stream takes over, a word on this one would take a message back.
            if self._session is not None and not self._is_handing_over:
                for delivery in self._in_hand.values():
                    if delivery.extend_at <= now and not delivery.cancellation.is_set:
                        delivery.extend_at = now + lease / EXTENDS_PER_LEASE
                        self._session.extend(delivery, lease)
            seconds_max = max(lease / EXTEND_ANSWERS_PER_LEASE, EXTEND_SECONDS_MIN) if self._in_hand else ANSWER_SECONDS_MAX
            for session in self._open:
                if session.silent_since is not None and now - session.silent_since > seconds_max:
                    session.abort(f"no answer within {seconds_max:g} s")

    # ---- the end

    def take_no_more(self) -> None:
        with self._changed:
            self._stopped_at = time.monotonic()

    def leave(self, delivery: GrpcDelivery) -> None:
        """Nobody has begun to work on it: the end of the stream gives it back."""
        self._has_left_some = True
        self.settled(delivery)

    def hand_over(self) -> None:
        """Let go of what has not been begun. The farewell on a stream gives back whatever it has, at no delivery's cost; so what
        is being worked on goes to another stream before, on which nothing is wanted."""
        with self._changed:
            session = self._session
            if session is None:
                return
            if not self._in_hand:
                session.farewell()
            elif session.credit > 0 or self._has_left_some:
                self._rest = threading.Thread(target=self._serve, name=f"pyworker-rest-{self.queue}", daemon=True)
                self._rest.start()

    def _prepare(self) -> None:
        """Nothing may be open on the old stream that would take a message back to it."""
        with self._changed:
            old = self._session
            if old is not None:
                self._is_handing_over = True
                self._changed.wait_for(lambda: self._session is not old or not self._is_asking(old), FAREWELL_SECONDS_MAX)

    def _is_asking(self, session: Session) -> bool:
        return bool(session.extending) or any(delivery.telling is not None for delivery in self._in_hand.values())

    def _succeed(self, session: Session) -> None:
        """This stream has all that is being worked on."""
        old = self._session
        self._session, self._successor, self._is_handing_over = session, None, False
        self._say_replies()
        if old is not None:
            old.farewell()
        self._changed.notify_all()

    def give_up_hopeless(self) -> None:
        """For the thread that stops."""
        with self._changed:
            now = time.monotonic()
            assert self._stopped_at is not None
            for delivery in list(self._in_hand.values()):
                if delivery.reply is not None and now - max(delivery.reply_since, self._stopped_at) > STOP_SECONDS_MAX:
                    text = "%s: its reply could not be sent while stopping: %s; the message will be given out again"
                    log.error(text, delivery, self._problem)
                    self.settled(delivery)
            for session in self._open:
                if session.farewell_at is not None and now - session.farewell_at > FAREWELL_SECONDS_MAX:
                    session.abort("the manager has not ended the stream")
