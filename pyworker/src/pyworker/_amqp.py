"""Over AMQP: one thread speaks to the broker, others run the functions, so that heartbeats never wait for work.

The order is the promise: call the function, publish its reply, have the broker's confirm, acknowledge the message.
Whatever dies in between, the broker still has the message and delivers it again. Nobody waits for a confirm: the next
reply is published meanwhile.

What is in hand outlives its connection. A function that has begun goes on, and its reply is published on the next connection,
whatever has become of the delivery: the broker may have given the message to somebody else, or up. If it comes again to this
process, it is not begun a second time: it is acknowledged with the reply that its first delivery has, or will have.
"""

from __future__ import annotations

import functools
import logging
import os
import queue
import random
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Callable

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, AMQPError, ChannelClosedByBroker

from ._step import Cancellation, Step
from ._work import (
    RECONNECT_SECONDS_MAX,
    RECONNECT_SECONDS_MIN,
    TICK_SECONDS,
    Delivery,
    Outcome,
    Performer,
    Progress,
    Refusal,
    Reply,
    sleep,
    without_password,
)

log = logging.getLogger("pyworker")

#: How long a reply that the broker cannot route, or refuses, is held and sent again before the message is requeued.
UNROUTABLE_SECONDS_MAX = 60.0
#: A larger message makes RabbitMQ close the channel, and the worker would meet it again and again.
REPLY_BYTES_MAX = 128 * 1024 * 1024

#: So many replies are remembered, with so many bytes, in case that the broker delivers their messages once more.
DONE_MAX = 1000
DONE_BYTES_MAX = 16 * 1024 * 1024

_PRECONDITION_FAILED = 406
_ACCESS_REFUSED = 403


class Transport:
    """Serves queues of a broker."""

    def __init__(self, queues: list[str], server: str, prefetch: int, performer: Performer) -> None:
        self._queues = queues
        self._parameters = _parameters(server, queues)
        self._address = without_password(server)
        self._prefetch = prefetch
        self._performer = performer
        #: For the thread that speaks to the broker, but for :meth:`tell`.
        self.in_hand: dict[object, _Delivery] = {}
        self.done = _Done()
        self.told: queue.SimpleQueue[_Told] = queue.SimpleQueue()
        self._session: _Session | None = None

    def tell(self, delivery: _Delivery, told: Outcome) -> None:
        """Hand over what became of a delivery. May be called by any thread."""
        self.told.put((delivery, told))
        session = self._session
        if session is not None:
            session.wake()

    def run(self, stopping: Callable[[], bool]) -> None:
        """Serve until ``stopping``, through every loss of the broker."""
        delay = RECONNECT_SECONDS_MIN
        while not stopping():
            session = None
            try:
                session = self._session = _Session(self, self._parameters, self._queues, self._prefetch, self._performer)
                log.info("consuming from %s at %s", ", ".join(self._queues), self._address)
                delay = RECONNECT_SECONDS_MIN
                session.serve(stopping)
            except (AMQPError, OSError) as error:
                if session is not None:
                    session.lost()
                if stopping():
                    log.warning("lost the connection to %s while stopping: %s", self._address, _reason(error))
                    break
                pause = delay * random.uniform(0.8, 1.2)
                log.warning("no connection to %s: %s; trying again in %.1f s", self._address, _reason(error), pause)
                sleep(pause, stopping)
                delay = min(delay * 2, RECONNECT_SECONDS_MAX)


class _Session:
    """One connection to the broker, from its opening to its end. Only the thread that made it may use it,
    except for :meth:`wake`."""

    def __init__(self, transport: Transport, parameters: pika.URLParameters, queues: list[str], prefetch: int, performer: Performer) -> None:
        self.is_lost = False
        self._is_stopping = False
        self._transport = transport
        self._performer = performer
        self._held: list[_HeldReply] = []
        self._cancelled: list[str] = []
        self._consumers: dict[str, str] = {}
        self._connection = pika.BlockingConnection(parameters)
        try:
            self._channel: BlockingChannel = self._connection.channel()
            self._publisher = _Publisher(self._connection, self._channel)
            self._channel.basic_qos(prefetch_count=prefetch)
            self._channel.add_on_cancel_callback(lambda frame: self._cancelled.append(frame.method.consumer_tag))
            for delivery in transport.in_hand.values():
                if delivery.reply is not None:
                    self._reply(_HeldReply(delivery, delivery.reply, since=time.monotonic()))
            for name in queues:
                self._subscribe(name)
        except BaseException:
            self.is_lost = True
            self._close()
            raise

    def serve(self, stopping: Callable[[], bool]) -> None:
        """Take messages and settle them until the worker stops and nothing is in hand."""
        while True:
            self._connection.process_data_events(time_limit=TICK_SECONDS)
            if not self._channel.is_open:
                raise AMQPError(f"the broker has closed the channel: {_reason(self._channel._closing_reason or AMQPError())}")
            self._subscribe_again()
            self._settle_told()
            if stopping():
                self._is_stopping = True
                self._take_no_more()
                if not self._transport.in_hand:
                    self._close()
                    return
            self._send_held()

    def wake(self) -> None:
        """There is something to tell. The one method for other threads."""
        try:
            _wake(self._connection)
        except AMQPConnectionError:
            # The next session tells it.
            pass

    def lost(self) -> None:
        """The broker delivers again what was not acknowledged."""
        self.is_lost = True
        unacknowledged = sum(delivery.session is self for delivery in self._transport.in_hand.values())
        if unacknowledged:
            log.warning("%d unacknowledged messages will be delivered again", unacknowledged)
        self._close()

    def _subscribe(self, name: str) -> None:
        self._declare(name)
        tag = self._channel.basic_consume(name, functools.partial(self._on_message, name))
        self._consumers[tag] = name

    def _declare(self, name: str) -> None:
        # A refused declaration closes its channel, so each has one of its own.
        channel = self._connection.channel()
        try:
            channel.queue_declare(name, durable=True)
        except ChannelClosedByBroker as error:
            if error.reply_code not in (_PRECONDITION_FAILED, _ACCESS_REFUSED):
                raise
            log.info("queue %s exists with other arguments, or may not be declared; used as it is: %s", name, error.reply_text)
        else:
            channel.close()

    def _subscribe_again(self) -> None:
        while self._cancelled:
            name = self._consumers.pop(self._cancelled.pop(), None)
            if name is not None:
                log.warning("queue %s was deleted; declaring it again", name)
                self._subscribe(name)

    def _on_message(self, name: str, _channel: BlockingChannel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        delivery = _Delivery(self._transport, self, name, [method.delivery_tag], method.redelivered, properties, body)
        known = self._transport.in_hand.get(delivery.key)
        if known is not None:
            log.info("%s: it came again, and is in hand already", known)
            # The broker has taken back what was delivered over another connection.
            known.tags = [*(known.tags if known.session is self else ()), method.delivery_tag]
            known.session = self
            return
        self._transport.in_hand[delivery.key] = delivery
        delivery.reply = self._transport.done.find(delivery.key) if method.redelivered else None
        if delivery.reply is None:
            self._performer.put(delivery)
        else:
            log.info("%s: it came again, and is done already", delivery)
            self._reply(_HeldReply(delivery, delivery.reply, since=time.monotonic()))

    def _settle_told(self) -> None:
        while True:
            try:
                delivery, told = self._transport.told.get_nowait()
            except queue.Empty:
                return
            if isinstance(told, Reply):
                delivery.reply = told
                self._reply(_HeldReply(delivery, told, since=time.monotonic()))
            elif isinstance(told, Refusal):
                self._nack(delivery, requeue=False)
            elif isinstance(told, Progress):
                self._progress(delivery, told)
            elif delivery.is_stale:
                # Its session was lost before it was begun.
                self._forget(delivery)
            else:
                # It has come again just then.
                self._performer.put(delivery)

    def _reply(self, held: _HeldReply) -> None:
        self._publish(held.delivery, held.reply.body, held.reply.type, functools.partial(self._on_confirm, held))

    def _on_confirm(self, held: _HeldReply, problem: str | None) -> None:
        delivery = held.delivery
        if problem is None:
            # Only now: a worker that died before the confirm would have lost the reply.
            for tag in delivery.tags_of(self):
                self._publisher.ack(tag)
            self._transport.done.add(delivery.key, held.reply)
            self._forget(delivery)
            if self._is_stopping:
                _wake(self._connection)
            return
        if time.monotonic() - held.since > UNROUTABLE_SECONDS_MAX:
            log.error('%s: its reply queue "%s" %s; giving the message back', delivery, delivery.reply_to, problem)
            held.is_hopeless = True
        else:
            log.warning('%s: its reply queue "%s" %s; trying again in %.0f s', delivery, delivery.reply_to, problem, held.delay)
            held.wait()
        self._held.append(held)

    def _send_held(self) -> None:
        now = time.monotonic()
        due = [held for held in self._held if held.due <= now or held.is_hopeless]
        self._held = [held for held in self._held if held not in due]
        for held in due:
            if held.is_hopeless:
                self._nack(held.delivery, requeue=True)
            else:
                self._reply(held)

    def _progress(self, delivery: _Delivery, progress: Progress) -> None:
        def confirmed(problem: str | None) -> None:
            if problem is not None:
                log.warning('%s: progress could not be told: its reply queue "%s" %s', delivery, delivery.reply_to, problem)

        self._publish(delivery, progress.body, "progress", confirmed)

    def _publish(self, delivery: _Delivery, body: bytes, kind: str | None, confirmed: Callable[[str | None], None]) -> None:
        properties = pika.BasicProperties(
            content_type="application/json",
            delivery_mode=pika.DeliveryMode.Persistent.value,
            correlation_id=delivery.properties.correlation_id,
            type=kind,
            headers=delivery.given_back(),
        )
        self._publisher.publish(delivery.reply_to, body, properties, confirmed)

    def _nack(self, delivery: _Delivery, *, requeue: bool) -> None:
        # First, so that it is begun anew if the connection is lost just now, and it comes again.
        self._forget(delivery)
        for tag in delivery.tags_of(self):
            self._channel.basic_nack(tag, requeue=requeue)

    def _forget(self, delivery: _Delivery) -> None:
        self._transport.in_hand.pop(delivery.key, None)

    def _take_no_more(self) -> None:
        for tag in list(self._consumers):
            del self._consumers[tag]
            self._channel.basic_cancel(tag)
        for held in self._held:
            self._nack(held.delivery, requeue=True)
        self._held.clear()
        for delivery in self._performer.not_begun():
            assert isinstance(delivery, _Delivery)
            self._nack(delivery, requeue=True)

    def _close(self) -> None:
        try:
            if self._connection.is_open:
                self._connection.close()
        except (AMQPError, OSError) as error:
            log.debug("closing the connection: %s", error)


class _Publisher:
    """Publishes on a channel whose confirms come when they come. What is said of one message comes once.

    A :class:`BlockingChannel` waits for each confirm. The channel beneath it, which does not, is used for what the other
    cannot do; what it writes leaves with the next look at the connection.
    """

    def __init__(self, connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
        self._channel: pika.channel.Channel = channel._impl
        self._published = 0
        #: By their numbers, from the oldest.
        self._open: dict[int, _Publication] = {}
        selected: list[Any] = []
        self._channel.add_on_return_callback(self._on_return)

        def on_selected(frame: Any) -> None:
            selected.append(frame)
            _wake(connection)

        self._channel.confirm_delivery(self._on_confirm, on_selected)
        while not selected:
            connection.process_data_events(time_limit=TICK_SECONDS)
            if not channel.is_open:
                raise AMQPConnectionError("the broker does not confirm what is published")

    def publish(self, queue: str, body: bytes, properties: pika.BasicProperties, confirmed: Callable[[str | None], None]) -> None:
        """``confirmed`` is called once the broker has it, without a problem, or does not take it."""
        self._channel.basic_publish("", queue, body, properties, mandatory=True)
        self._published += 1
        self._open[self._published] = _Publication((queue, properties.correlation_id, properties.type, body), confirmed)

    def ack(self, tag: int) -> None:
        self._channel.basic_ack(tag)

    def _on_return(self, _channel: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        """The broker cannot route it. Its confirm follows."""
        returned = (method.routing_key, properties.correlation_id, properties.type, body)
        for publication in self._open.values():
            if publication.problem is None and publication.identity == returned:
                publication.problem = "does not exist"
                return

    def _on_confirm(self, frame: Any) -> None:
        confirm = frame.method
        numbers = [confirm.delivery_tag]
        if confirm.multiple:
            numbers = [number for number in self._open if number <= confirm.delivery_tag]
        for number in numbers:
            publication = self._open.pop(number, None)
            if publication is not None:
                is_refused = isinstance(confirm, pika.spec.Basic.Nack)
                publication.confirmed(publication.problem or ("refuses messages" if is_refused else None))


@dataclass
class _Publication:
    #: Two of which all this is the same are as good as one another.
    identity: tuple[str, str | None, str | None, bytes]
    confirmed: Callable[[str | None], None]
    problem: str | None = None


class _Done:
    """The replies of what was done last, by the messages' keys."""

    def __init__(self) -> None:
        self._replies: dict[object, Reply] = {}
        self._bytes = 0

    def find(self, key: object) -> Reply | None:
        return self._replies.get(key)

    def add(self, key: object, reply: Reply) -> None:
        if isinstance(key, _Delivery):
            return
        self._remove(key)
        self._replies[key] = reply
        self._bytes += len(reply.body)
        while len(self._replies) > DONE_MAX or self._bytes > DONE_BYTES_MAX:
            self._remove(next(iter(self._replies)))

    def _remove(self, key: object) -> None:
        removed = self._replies.pop(key, None)
        if removed is not None:
            self._bytes -= len(removed.body)


@dataclass(eq=False)
class _Delivery(Delivery):
    transport: Transport
    #: What delivered it last, with all its tags there.
    session: _Session
    queue: str
    tags: list[int]
    redelivered: bool
    properties: pika.BasicProperties
    body: bytes
    #: Over AMQP nobody says that an attempt is over.
    cancellation: Cancellation = field(default_factory=Cancellation)
    #: What its function has made.
    reply: Reply | None = None
    reply_bytes_max = REPLY_BYTES_MAX
    system = "rabbitmq"

    @property
    def key(self) -> object:
        """The same for each delivery of the message, if it can be known by something."""
        properties = self.properties
        return (self.queue, properties.message_id, properties.correlation_id, properties.reply_to) if properties.message_id else self

    def tags_of(self, session: _Session) -> list[int]:
        """What must be acknowledged there; nothing, if what has delivered it is lost."""
        return self.tags if self.session is session else []

    @property
    def reply_to(self) -> str:
        return self.properties.reply_to or ""

    @property
    def is_stale(self) -> bool:
        return self.session.is_lost

    def given_back(self) -> dict[str, Any] | None:
        """The headers of what is said of this message: with its attempt, so that a late failure counts for no other."""
        attempt = (self.properties.headers or {}).get("attempt")
        return None if attempt is None else {"attempt": attempt}

    def tell(self, outcome: Outcome) -> None:
        self.transport.tell(self, outcome)

    def step(self, send_progress: Callable[[dict[str, Any]], None]) -> Step:
        headers = self.properties.headers or {}
        return Step.of(self.queue, self.properties.correlation_id, headers, self.redelivered, send_progress, self.cancellation)

    def __str__(self) -> str:
        return f"{self.queue}: message {self.properties.message_id or self.properties.correlation_id or self.tags[0]}"


_Told = tuple[_Delivery, Outcome]


@dataclass(eq=False)
class _HeldReply:
    delivery: _Delivery
    reply: Reply
    since: float
    delay: float = RECONNECT_SECONDS_MIN
    due: float = 0.0
    #: Its message goes back.
    is_hopeless: bool = False

    def wait(self) -> None:
        self.due = time.monotonic() + self.delay
        self.delay = min(self.delay * 2, RECONNECT_SECONDS_MAX)


def _wake(connection: pika.BlockingConnection) -> None:
    """Ends its look at what comes. May be called by any thread."""
    connection.add_callback_threadsafe(lambda: None)


def _parameters(server: str, queues: list[str]) -> pika.URLParameters:
    parameters = pika.URLParameters(server)
    parameters.client_properties = {"connection_name": f"pyworker {','.join(queues)} {socket.gethostname()}:{os.getpid()}"}
    return parameters


def _reason(error: Exception) -> str:
    # pika wraps what the operating system said into exceptions, some of which have no text.
    while isinstance(error, AMQPConnectionError) and error.args and isinstance(error.args[0], Exception):
        error = error.args[0]
    inner = getattr(error, "exception", None)
    if isinstance(inner, Exception):
        error = inner
    text = getattr(error, "reply_text", None) or str(error)
    return text or type(error).__name__
