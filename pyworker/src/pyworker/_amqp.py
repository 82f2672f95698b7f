"""Over AMQP: one thread speaks to the broker, others run the functions, so that heartbeats never wait for work.

The order is the promise: call the function, publish its reply, wait for the broker's confirm, acknowledge the
message. Whatever dies in between, the broker still has the message and delivers it again.
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
from pika.exceptions import AMQPConnectionError, AMQPError, ChannelClosedByBroker, NackError, UnroutableError

from ._step import Cancellation, Step
from ._work import (
    RECONNECT_SECONDS_MAX,
    RECONNECT_SECONDS_MIN,
    TICK_SECONDS,
    Delivery,
    Dropped,
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

    def run(self, stopping: Callable[[], bool]) -> None:
        """Serve until ``stopping``, through every loss of the broker."""
        delay = RECONNECT_SECONDS_MIN
        while not stopping():
            session = None
            try:
                session = _Session(self._parameters, self._queues, self._prefetch, self._performer)
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
    except for :meth:`tell`."""

    def __init__(self, parameters: pika.URLParameters, queues: list[str], prefetch: int, performer: Performer) -> None:
        self.is_lost = False
        self._performer = performer
        self._told: queue.SimpleQueue[_Told] = queue.SimpleQueue()
        self._unsettled: dict[int, _Delivery] = {}
        self._held: list[_HeldReply] = []
        self._cancelled: list[str] = []
        self._consumers: dict[str, str] = {}
        self._connection = pika.BlockingConnection(parameters)
        try:
            self._channel: BlockingChannel = self._connection.channel()
            self._channel.confirm_delivery()
            self._channel.basic_qos(prefetch_count=prefetch)
            self._channel.add_on_cancel_callback(lambda frame: self._cancelled.append(frame.method.consumer_tag))
            for name in queues:
                self._subscribe(name)
        except BaseException:
            self._close()
            raise

    def serve(self, stopping: Callable[[], bool]) -> None:
        """Take messages and settle them until the worker stops and nothing is in hand."""
        while True:
            self._connection.process_data_events(time_limit=TICK_SECONDS)
            self._subscribe_again()
            self._settle_told()
            if stopping():
                self._take_no_more()
                if not self._unsettled:
                    self._close()
                    return
            self._send_held()

    def tell(self, delivery: _Delivery, told: Outcome) -> None:
        """Hand over what became of a delivery. The one method for other threads."""
        self._told.put((delivery, told))
        try:
            self._connection.add_callback_threadsafe(lambda: None)
        except AMQPConnectionError:
            if not isinstance(told, Progress):
                log.warning("%s: done, but its connection was lost; the broker delivers it again", delivery)

    def lost(self) -> None:
        """Forget everything: the broker delivers again what was not acknowledged."""
        self.is_lost = True
        if self._unsettled:
            log.warning("%d unacknowledged messages will be delivered again", len(self._unsettled))
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
        delivery = _Delivery(self, name, method.delivery_tag, method.redelivered, properties, body)
        self._unsettled[delivery.tag] = delivery
        self._performer.put(delivery)

    def _settle_told(self) -> None:
        while True:
            try:
                delivery, told = self._told.get_nowait()
            except queue.Empty:
                return
            if isinstance(told, Reply):
                self._reply(_HeldReply(delivery, told, since=time.monotonic()))
            elif isinstance(told, Refusal):
                self._nack(delivery, requeue=False)
            elif isinstance(told, Progress):
                self._progress(delivery, told)

    def _reply(self, held: _HeldReply) -> None:
        delivery = held.delivery
        try:
            self._publish(delivery, held.reply.body, held.reply.type)
        except (UnroutableError, NackError) as error:
            reason = "does not exist" if isinstance(error, UnroutableError) else "refuses messages"
            if time.monotonic() - held.since > UNROUTABLE_SECONDS_MAX:
                log.error('%s: its reply queue "%s" %s; giving the message back', delivery, delivery.reply_to, reason)
                self._nack(delivery, requeue=True)
                return
            log.warning('%s: its reply queue "%s" %s; trying again in %.0f s', delivery, delivery.reply_to, reason, held.delay)
            held.wait()
            self._held.append(held)
        else:
            # Only now, after the confirm: a worker that died before it would have lost the reply.
            self._channel.basic_ack(delivery.tag)
            del self._unsettled[delivery.tag]

    def _send_held(self) -> None:
        now = time.monotonic()
        due = [held for held in self._held if held.due <= now]
        self._held = [held for held in self._held if held.due > now]
        for held in due:
            self._reply(held)

    def _progress(self, delivery: _Delivery, progress: Progress) -> None:
        try:
            self._publish(delivery, progress.body, "progress")
        except (UnroutableError, NackError):
            log.warning('%s: progress could not be told: its reply queue "%s" takes no messages', delivery, delivery.reply_to)

    def _publish(self, delivery: _Delivery, body: bytes, kind: str | None) -> None:
        properties = pika.BasicProperties(
            content_type="application/json",
            delivery_mode=pika.DeliveryMode.Persistent.value,
            correlation_id=delivery.properties.correlation_id,
            type=kind,
            headers=delivery.given_back(),
        )
        # In confirm mode this returns when the broker has confirmed, and raises when it could not route.
        self._channel.basic_publish("", delivery.reply_to, body, properties, mandatory=True)

    def _nack(self, delivery: _Delivery, *, requeue: bool) -> None:
        self._channel.basic_nack(delivery.tag, requeue=requeue)
        del self._unsettled[delivery.tag]

    def _take_no_more(self) -> None:
        for tag in list(self._consumers):
            del self._consumers[tag]
            self._channel.basic_cancel(tag)
        for held in self._held:
            self._nack(held.delivery, requeue=True)
        self._held.clear()
        for delivery in self._performer.not_begun():
            if isinstance(delivery, _Delivery) and delivery.session is self:
                self._nack(delivery, requeue=True)

    def _close(self) -> None:
        try:
            if self._connection.is_open:
                self._connection.close()
        except (AMQPError, OSError) as error:
            log.debug("closing the connection: %s", error)


@dataclass(frozen=True)
class _Delivery(Delivery):
    session: _Session
    queue: str
    tag: int
    redelivered: bool
    properties: pika.BasicProperties
    body: bytes
    #: Over AMQP nobody says that an attempt is over.
    cancellation: Cancellation = field(default_factory=Cancellation)
    reply_bytes_max = REPLY_BYTES_MAX
    system = "rabbitmq"

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
        # Nothing is to be told of what its session has lost.
        if not isinstance(outcome, Dropped):
            self.session.tell(self, outcome)

    def step(self, send_progress: Callable[[dict[str, Any]], None]) -> Step:
        headers = self.properties.headers or {}
        return Step.of(self.queue, self.properties.correlation_id, headers, self.redelivered, send_progress, self.cancellation)

    def __str__(self) -> str:
        return f"{self.queue}: message {self.properties.message_id or self.properties.correlation_id or self.tag}"


_Told = tuple[_Delivery, Outcome]


@dataclass
class _HeldReply:
    delivery: _Delivery
    reply: Reply
    since: float
    delay: float = RECONNECT_SECONDS_MIN
    due: float = 0.0

    def wait(self) -> None:
        self.due = time.monotonic() + self.delay
        self.delay = min(self.delay * 2, RECONNECT_SECONDS_MAX)


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
