"""Over HTTP: messages are lent by a manager that runs without a broker.

For each queue a thread asks for as many messages as there is room for; one thread lengthens the leases of what is in hand. A
reply is sent again and again until the manager has committed it: by whoever ran the function, or, where several messages may be
in hand, together with others by a thread of its own. Whatever dies in between, the lease ends, and the
manager gives the message to another worker. Of several addresses the one of the active manager is in use; when it changes,
what is in hand stays in hand.
"""

from __future__ import annotations

import http.client
import json
import logging
import random
import socket
import struct
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Callable
from urllib.parse import quote, urlencode

from ._addresses import Address, Addresses, several
from ._replies import BYTES_MAX, Replier, Room, release
from ._step import Cancellation, Step
from ._work import (
    RECONNECT_SECONDS_MAX,
    RECONNECT_SECONDS_MIN,
    TICK_SECONDS,
    Delivery,
    Outcome,
    Performer,
    Progress,
    Reply,
    error_reply,
    sleep,
)

log = logging.getLogger("pyworker")

#: How long the manager holds a question for a message open.
WAIT_SECONDS = 30
#: How long an answer may take beyond that.
ANSWER_SECONDS_MAX = 30.0
CONNECT_SECONDS_MAX = 10.0
#: Leases are lengthened so often within their time.
EXTENDS_PER_LEASE = 6
#: The answer may take this part of a lease, so that at a machine that is gone there is time left for the next address.
EXTEND_ANSWERS_PER_LEASE = 3
EXTEND_SECONDS_MIN = 1.0
#: As many messages the manager gives at once.
MESSAGES_MAX = 100
#: How long replies are sent again while the worker stops.
STOP_SECONDS_MAX = 20.0

#: The answers after which it is useless to send the same reply once more.
_REFUSED = (400, 404, 405, 409, 410, 411, 415, 422)
_TOO_LARGE = 413
_GONE = 410
_NO_MESSAGE = 204
#: What a manager answers that is not the one to ask: it stands by, or does not have the workflow's name.
_NOT_ACTIVE = (421, 503)
_MISDIRECTED = 421
_ACTIVE_HEADER = "workflow-manager-active"
#: So begins the reason of one that stands by; it need not know who is active.
_STANDS_BY = "stands by"
_HEADERS = ("workflow", "job", "attempt", "depth", "traceparent", "tracestate", "priority")
_NUMBERS = ("attempt", "depth", "priority")


class Transport:
    """Takes messages from queues of a manager."""

    def __init__(self, queues: list[str], server: str, prefetch: int, performer: Performer, *, token: str, lease: float) -> None:
        self._queues = queues
        self.addresses = Addresses(server)
        self._token = checked_token(token)
        self._prefetch = prefetch
        self._performer = performer
        self._lease = lease
        self._local = threading.local()
        self._lock = threading.Lock()
        #: By their message ids.
        self._in_hand: dict[str, HttpDelivery] = {}
        self._stopped_at: float | None = None
        self._is_over = False
        #: With one message in hand at a time nothing could go together.
        self._replier = Replier(self.connection, self._send, self._settle_all, self._is_hopeless) if prefetch > 1 else None

    def run(self, stopping: Callable[[], bool]) -> None:
        """Serve until ``stopping``, through every restart of the manager."""
        receivers = [_Receiver(self, queue, self._prefetch, stopping) for queue in self._queues]
        for receiver in receivers:
            receiver.start()
        if self._replier is not None:
            self._replier.start()
        threading.Thread(target=self._extend_all, name="pyworker-leases", daemon=True).start()
        while not stopping():
            time.sleep(TICK_SECONDS)
        self._stopped_at = time.monotonic()
        # A question that is under way is broken off, so that it takes no message with it.
        while any(receiver.is_alive() for receiver in receivers):
            for receiver in receivers:
                receiver.interrupt()
            time.sleep(TICK_SECONDS / 10)
        for delivery in self._performer.not_begun():
            self.give_back(delivery)
        while self._in_hand:
            time.sleep(TICK_SECONDS / 10)
        self._is_over = True
        if self._replier is not None:
            self._replier.stop()

    # ---- for receivers

    def connection(self) -> Connection:
        """One for each thread."""
        if not hasattr(self._local, "connection"):
            self._local.connection = Connection(self.addresses, self._token)
        connection: Connection = self._local.connection
        return connection

    def receive_path(self, queue: str, wait: int, messages_max: int | None) -> str:
        several = "" if messages_max is None else f"&max={messages_max}"
        return f"/api/queue/{quote(queue, safe='')}/receive?wait={wait}s&lease={_span(self._lease)}{several}"

    def take(self, delivery: HttpDelivery) -> bool:
        """Work on it. False: it is in hand already, and stays there as this delivery."""
        with self._lock:
            known = self._in_hand.get(delivery.message_id)
            if known is not None:
                known.path = delivery.path
                return False
            delivery.extend_at = time.monotonic() + self._lease / EXTENDS_PER_LEASE
            self._in_hand[delivery.message_id] = delivery
        self._performer.put(delivery)
        return True

    def give_back(self, delivery: Delivery) -> None:
        """Nobody has begun to work on it."""
        assert isinstance(delivery, HttpDelivery)
        try:
            self.connection().ask(delivery.call("nack", requeue="true"))
        except Unreachable as error:
            log.info("%s: could not be given back: %s; its lease ends by itself", delivery, error)
        self.settled(delivery)

    # ---- for deliveries

    def progress(self, delivery: HttpDelivery, progress: Progress) -> None:
        try:
            answer = self.connection().ask(delivery.call("reply", type="progress"), progress.body)
            if not answer.is_ok:
                log.warning("%s: progress could not be told: %s", delivery, answer)
        except Unreachable as error:
            log.warning("%s: progress could not be told: %s", delivery, error)

    def reply(self, delivery: HttpDelivery, reply: Reply) -> None:
        """Have it sent until the manager has committed it; then the delivery is settled."""
        if self._replier is not None and self._replier.is_usable and len(reply.body) <= BYTES_MAX:
            self._replier.put(delivery, reply)
        else:
            self._send(delivery, reply)

    def _send(self, delivery: HttpDelivery, reply: Reply) -> None:
        try:
            self._send_until_taken(delivery, reply)
        finally:
            self.settled(delivery)

    def _is_hopeless(self, since: float) -> bool:
        return self._stopped_at is not None and time.monotonic() - max(since, self._stopped_at) > STOP_SECONDS_MAX

    def _send_until_taken(self, delivery: HttpDelivery, reply: Reply) -> None:
        delay, since = RECONNECT_SECONDS_MIN, time.monotonic()

        while True:
            told: object
            try:
                answer = self.connection().ask(delivery.call("reply", type=reply.type), reply.body)
                if answer.is_ok:
                    if answer.json().get("taken") is not True:
                        log.info("%s: its reply changed nothing: %s", delivery, answer.json().get("reason"))
                    return
                if answer.status == _TOO_LARGE and reply.type is None:
                    log.error("%s: failed (not retryable): its reply is too large: %s", delivery, answer)
                    reply = error_reply(f"the reply has {len(reply.body)} bytes: {answer.detail}", retryable=False)
                    continue
                if answer.status in _REFUSED or answer.status == _TOO_LARGE:
                    log.error("%s: the manager does not take its reply: %s", delivery, answer)
                    return
                told = answer
                delay = max(delay, min(answer.retry_after, RECONNECT_SECONDS_MAX))
            except Unreachable as error:
                told = error
            if self._is_hopeless(since):
                log.error("%s: its reply could not be sent while stopping: %s; the message will be given out again", delivery, told)
                return
            pause = delay * random.uniform(0.8, 1.2)
            log.warning("%s: its reply was not taken: %s; trying again in %.1f s", delivery, told, pause)
            sleep(pause, lambda: self._is_hopeless(since))
            delay = min(delay * 2, RECONNECT_SECONDS_MAX)

    def settled(self, delivery: HttpDelivery) -> None:
        self._settle_all([delivery])

    def _settle_all(self, deliveries: Iterable[HttpDelivery]) -> None:
        deliveries = list(deliveries)
        with self._lock:
            for delivery in deliveries:
                self._in_hand.pop(delivery.message_id, None)
        release(delivery.room for delivery in deliveries)

    # ---- leases

    def _extend_all(self) -> None:
        while not self._is_over:
            now = time.monotonic()
            with self._lock:
                due = [delivery for delivery in self._in_hand.values() if delivery.extend_at <= now and not delivery.cancellation.is_set]
            for delivery in due:
                delivery.extend_at = time.monotonic() + self._lease / EXTENDS_PER_LEASE
                self._extend(delivery)
            time.sleep(min(TICK_SECONDS, self._lease / EXTENDS_PER_LEASE / 4))

    def _extend(self, delivery: HttpDelivery) -> None:
        seconds_max = max(self._lease / EXTEND_ANSWERS_PER_LEASE, EXTEND_SECONDS_MIN)
        try:
            answer = self.connection().ask(delivery.call("extend", lease=_span(self._lease)), seconds_max=seconds_max)
        except Unreachable as error:
            log.debug("%s: its lease could not be extended: %s", delivery, error)
            return
        if answer.status == _GONE and answer.detail.startswith("lease expired"):
            # Another worker has it: after a restart of the manager, say. The first reply counts. If that one loses its lease too,
            # this one is taken up again.
            if not delivery.is_lease_lost:
                delivery.is_lease_lost = True
                log.warning("%s: its lease has ended, and another worker may have it; the first reply counts", delivery)
        elif answer.status == _GONE:
            log.info("%s: %s", delivery, answer.detail)
            delivery.cancellation.set(answer.detail)
        elif answer.is_ok:
            delivery.is_lease_lost = False
        else:
            log.warning("%s: its lease could not be extended: %s", delivery, answer)


class _Receiver(threading.Thread):
    """Asks for the messages of a queue, as long as there is room for another."""

    def __init__(self, transport: Transport, queue: str, prefetch: int, stopping: Callable[[], bool]) -> None:
        super().__init__(name=f"pyworker-receive-{queue}", daemon=True)
        self._transport = transport
        self._queue = queue
        self._room = Room(prefetch)
        self._takes_several = prefetch > 1
        self._stopping = stopping
        self._connection: Connection | None = None
        self._is_connected = False
        self._is_asking = False

    def run(self) -> None:
        self._connection = self._transport.connection()
        delay = RECONNECT_SECONDS_MIN
        while not self._stopping():
            room = self._room.take(MESSAGES_MAX if self._takes_several else 1, TICK_SECONDS)
            if room == 0:
                continue
            told: object
            try:
                self._room.release(room - self._receive(room))
                delay = RECONNECT_SECONDS_MIN
                continue
            except _Refused as refused:
                told, level = refused, logging.ERROR
                pause = max(delay, min(refused.retry_after, RECONNECT_SECONDS_MAX))
            except Unreachable as error:
                told, level, pause = f"no connection to {error}", logging.WARNING, delay
            self._room.release(room)
            self._is_connected = False
            if self._stopping():
                break
            pause *= random.uniform(0.8, 1.2)
            log.log(level, "%s: %s; trying again in %.1f s", self._queue, told, pause)
            sleep(pause, self._stopping)
            delay = min(delay * 2, RECONNECT_SECONDS_MAX)
        self._connection.close()

    def interrupt(self) -> None:
        """Breaks off the question that is under way. For the thread that stops."""
        if self._connection is not None and self._is_asking:
            self._connection.interrupt()

    def _receive(self, room: int) -> int:
        """How many more messages there are in hand."""
        assert self._connection is not None
        wait = WAIT_SECONDS if self._is_connected else 0
        self._is_asking = True
        try:
            path = self._transport.receive_path(self._queue, wait, room if self._takes_several else None)
            answer = self._connection.ask(path, seconds_max=wait + ANSWER_SECONDS_MAX, is_over=self._stopping)
        finally:
            self._is_asking = False
        if not answer.is_ok:
            raise _Refused(answer)
        if not self._is_connected:
            self._is_connected = True
            log.info("consuming from %s at %s", self._queue, self._connection.address.text)
        return sum(self._begin(delivery) for delivery in self._deliveries(answer))

    def _deliveries(self, answer: Answer) -> list[HttpDelivery]:
        if answer.status == _NO_MESSAGE:
            return []
        if not self._takes_several:
            return [HttpDelivery(self._transport, self._queue, self._room, answer.headers, answer.body)]
        try:
            messages = json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            # One at a time, so that what cannot be read costs itself alone. These come again when their leases have ended.
            log.error("%s: several messages at once cannot be read: %s; asking for one at a time", self._queue, error)
            self._takes_several = False
            return []
        return [HttpDelivery.of(self._transport, self._queue, self._room, message) for message in messages]

    def _begin(self, delivery: HttpDelivery) -> bool:
        """Whether it is in hand now."""
        if self._stopping():
            self._transport.give_back(delivery)
            return True
        return self._transport.take(delivery)


class HttpDelivery(Delivery):
    system = "workflow_manager"

    def __init__(self, transport: Transport, queue: str, room: Room, headers: Mapping[str, str], body: bytes) -> None:
        self.queue = queue
        self.room = room
        self.body = body
        self.cancellation = Cancellation()
        self.headers = headers
        self.path = self.headers.get("reply-to", "")
        self.message_id = self.headers.get("message-id", self.path)
        self.extend_at = 0.0
        self.is_lease_lost = False
        self._transport = transport

    @classmethod
    def of(cls, transport: Transport, queue: str, room: Room, message: dict[str, Any]) -> HttpDelivery:
        """One of several, which came as JSON."""
        headers = {key.replace("_", "-"): str(value) for key, value in message.items() if key != "body"}
        delivery = cls(transport, queue, room, headers, b"")
        delivery.message = message.get("body")
        return delivery

    @property
    def reply_to(self) -> str:
        return self.path

    @property
    def is_stale(self) -> bool:
        return self.cancellation.is_set

    def call(self, word: str, **query: str | None) -> str:
        """The path of a call about this delivery: that of its replies, or one beside it."""
        path, _, given = self.path.partition("?")
        assert path.endswith("/reply")
        asked = urlencode({key: value for key, value in query.items() if value is not None}, quote_via=quote)
        return f"{path[: -len('reply')]}{word}?{'&'.join(part for part in (given, asked) if part)}"

    def tell(self, outcome: Outcome) -> None:
        if isinstance(outcome, Progress):
            self._transport.progress(self, outcome)
            return
        if isinstance(outcome, Reply):
            self._transport.reply(self, outcome)
        else:
            self._transport.settled(self)

    def step(self, send_progress: Callable[[dict[str, Any]], None]) -> Step:
        headers: dict[str, Any] = {key: self.headers[key] for key in _HEADERS if key in self.headers}
        for key in _NUMBERS:
            if key in headers:
                headers[key] = int(headers[key])
        redelivered = self.headers.get("delivery", "1") != "1"
        return Step.of(self.queue, self.headers.get("correlation-id"), headers, redelivered, send_progress, self.cancellation)

    def __str__(self) -> str:
        return f"{self.queue}: message {self.message_id}"


class Connection:
    """A connection that is kept, and opened again where it was closed. For one thread, but for ``interrupt``."""

    def __init__(self, addresses: Addresses, token: str) -> None:
        self._addresses = addresses
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        #: Where it leads.
        self.address = addresses.current
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self, path: str, body: bytes = b"", *, seconds_max: float = ANSWER_SECONDS_MAX, is_over: Callable[[], bool] = lambda: False
    ) -> Answer:
        """Ask the active manager: each address at most once. No other one is asked once ``is_over``."""
        tried: dict[Address, str] = {}
        while True:
            address = self._addresses.current
            last: Answer | Unreachable
            try:
                last = self._ask_at(address, path, body, seconds_max)
                if not last.is_elsewhere:
                    if tried:
                        log.info("goes on at %s, after %s", address.text, several(tried))
                    return last
                hint = ""
                if last.active:
                    hint = self._addresses.follow(address, last.active)
                else:
                    self._addresses.leave(address)
                tried[address] = f"{last}{hint}"
            except Unreachable as error:
                last = error
                self._addresses.leave(address)
                tried[address] = str(error)
            if is_over() or self._addresses.current in tried:
                if len(tried) == 1 and isinstance(last, Answer):
                    return last
                raise Unreachable(several(tried))

    def _ask_at(self, address: Address, path: str, body: bytes, seconds_max: float) -> Answer:
        if self.address != address:
            self.close()
            self.address = address
        while True:
            is_kept = self._connection is not None
            try:
                if self._connection is None:
                    self._connection = address.connect(min(seconds_max, CONNECT_SECONDS_MAX))
                    self._connection.connect()
                assert self._connection.sock is not None
                self._connection.sock.settimeout(seconds_max)
                self._connection.request("POST", address.path(path), body, self._headers)
                answer = self._connection.getresponse()
                told = Answer(answer.status, {key.lower(): _text(value) for key, value in answer.getheaders()}, answer.read())
                if answer.will_close:
                    self.close()
                return told
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.close()
                # The server closes a connection that was silent for some seconds.
                if is_kept and isinstance(error, (http.client.RemoteDisconnected, ConnectionError, AssertionError)):
                    continue
                raise Unreachable(error) from None

    def interrupt(self) -> None:
        """Whoever waits for an answer hears that none comes; an answer that is here already is read still."""
        connection = self._connection
        sock = None if connection is None else connection.sock
        if sock is None:
            return
        try:
            # Without a farewell, which the manager would take for a client that still listens.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.shutdown(socket.SHUT_RD)
        except OSError:
            pass

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def retry_after(self) -> float:
        value = self.headers.get("retry-after", "")
        return float(value) if value.isdecimal() else 0.0

    @property
    def detail(self) -> str:
        """What is wrong, in the manager's words."""
        return str(self.json().get("detail") or self.body[:200].decode("utf-8", "replace") or http.client.responses.get(self.status, ""))

    @property
    def active(self) -> str:
        """The address of the active manager, if this one says that it is another one; "" if it does not."""
        named = self.headers.get(_ACTIVE_HEADER) or self.json().get("active")
        return named if self.status in _NOT_ACTIVE and isinstance(named, str) else ""

    @property
    def is_elsewhere(self) -> bool:
        """Whether another manager must be asked. A 503 by itself is an overload."""
        if self.status not in _NOT_ACTIVE:
            return False
        return bool(self.active) or self.status == _MISDIRECTED or self.detail.startswith(_STANDS_BY)

    def json(self) -> dict[str, Any]:
        value = self._value()
        return value if isinstance(value, dict) else {}

    def list(self) -> list[dict[str, Any]]:
        value = self._value()
        return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []

    def _value(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.status} {self.detail}"


class Unreachable(Exception):
    """No answer came."""

    def __str__(self) -> str:
        return str(self.args[0]) or type(self.args[0]).__name__


class _Refused(Exception):
    """The manager gives no messages."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(str(answer))
        self.retry_after = answer.retry_after


def checked_token(token: str) -> str:
    if not all(33 <= ord(letter) <= 126 for letter in token):
        raise ValueError("the manager's token has a character that cannot stand in a header")
    return token


def _span(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def _text(value: str) -> str:
    """A header in UTF-8, which http.client reads as Latin-1."""
    return value.encode("latin-1", "replace").decode("utf-8", "replace")
