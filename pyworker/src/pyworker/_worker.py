"""The worker: one thread speaks to the broker, others run the functions, so that heartbeats never wait for work.

The order is the promise: call the function, publish its reply, wait for the broker's confirm, acknowledge the
message. Whatever dies in between, the broker still has the message and delivers it again.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import queue
import random
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Union
from urllib.parse import urlsplit

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, AMQPError, ChannelClosedByBroker, NackError, UnroutableError

from ._step import _CURRENT, Failed, Handler, Step

log = logging.getLogger("pyworker")

RECONNECT_SECONDS_MIN = 1.0
RECONNECT_SECONDS_MAX = 30.0
#: How long a reply that the broker cannot route, or refuses, is held and sent again before the message is requeued.
UNROUTABLE_SECONDS_MAX = 60.0
#: How soon a stop is noticed while nothing else happens.
TICK_SECONDS = 0.25
#: A larger message makes RabbitMQ close the channel, and the worker would meet it again and again.
REPLY_BYTES_MAX = 128 * 1024 * 1024
#: How much of an error's text is told, in characters; the manager keeps 4 KiB. The log has all of it.
ERROR_CHARS_MAX = 4000

_PRECONDITION_FAILED = 406
_ACCESS_REFUSED = 403


class Worker:
    """Serves queues, each with its function; :func:`pyworker.run` wraps it into a program.

    ``prefetch`` is the number of messages held per queue, ``threads`` the number of functions running at once.
    """

    def __init__(self, handlers: Mapping[str, Handler], amqp_server: str, *, prefetch: int = 1, threads: int = 1) -> None:
        if not handlers:
            raise ValueError("a worker needs at least one queue")
        if not 1 <= prefetch <= 65535:
            raise ValueError(f"prefetch is from 1 to 65535, not {prefetch}")
        if threads < 1:
            raise ValueError(f"threads is at least 1, not {threads}")
        self._handlers = dict(handlers)
        self._parameters = _parameters(amqp_server, list(handlers))
        self._address = _without_password(amqp_server)
        self._prefetch = prefetch
        self._threads = threads
        self._work: queue.SimpleQueue[_Delivery | None] = queue.SimpleQueue()
        self._stopping = False

    @property
    def stopping(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopping

    def stop(self) -> None:
        """Finish the messages in hand and make :meth:`run` return. May be called from any thread or signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Serve until :meth:`stop` is called, through every loss of the broker."""
        for index in range(self._threads):
            threading.Thread(target=self._perform_all, name=f"pyworker-{index}", daemon=True).start()
        delay = RECONNECT_SECONDS_MIN
        while not self._stopping:
            session = None
            try:
                session = _Session(self._parameters, list(self._handlers), self._prefetch, self._work)
                log.info("consuming from %s at %s", ", ".join(self._handlers), self._address)
                delay = RECONNECT_SECONDS_MIN
                session.serve(self)
            except (AMQPError, OSError) as error:
                if session is not None:
                    session.lost()
                if self._stopping:
                    log.warning("lost the connection to %s while stopping: %s", self._address, _reason(error))
                    break
                pause = delay * random.uniform(0.8, 1.2)
                log.warning("no connection to %s: %s; trying again in %.1f s", self._address, _reason(error), pause)
                self._sleep(pause)
                delay = min(delay * 2, RECONNECT_SECONDS_MAX)
        for _ in range(self._threads):
            self._work.put(None)
        log.info("stopped")

    def _sleep(self, seconds: float) -> None:
        # In short naps: a signal handler may set a flag but must not touch a lock.
        end = time.monotonic() + seconds
        while not self._stopping and time.monotonic() < end:
            time.sleep(TICK_SECONDS / 4)

    def _perform_all(self) -> None:
        while True:
            delivery = self._work.get()
            if delivery is None:
                return
            if not delivery.session.is_lost:
                delivery.session.tell(delivery, _perform(self._handlers[delivery.queue], delivery))


class _Session:
    """One connection to the broker, from its opening to its end. Only the thread that made it may use it,
    except for :meth:`tell`."""

    def __init__(self, parameters: pika.URLParameters, queues: list[str], prefetch: int, work: queue.SimpleQueue[_Delivery | None]) -> None:
        self.is_lost = False
        self._work = work
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

    def serve(self, worker: Worker) -> None:
        """Take messages and settle them until the worker stops and nothing is in hand."""
        while True:
            self._connection.process_data_events(time_limit=TICK_SECONDS)
            self._subscribe_again()
            self._settle_told()
            if worker.stopping:
                self._take_no_more()
                if not self._unsettled:
                    self._close()
                    return
            self._send_held()

    def tell(self, delivery: _Delivery, told: _Outcome) -> None:
        """Hand over what became of a delivery. The one method for other threads."""
        self._told.put((delivery, told))
        try:
            self._connection.add_callback_threadsafe(lambda: None)
        except AMQPConnectionError:
            if not isinstance(told, _Progress):
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
        self._work.put(delivery)

    def _settle_told(self) -> None:
        while True:
            try:
                delivery, told = self._told.get_nowait()
            except queue.Empty:
                return
            if isinstance(told, _Reply):
                self._reply(_HeldReply(delivery, told, since=time.monotonic()))
            elif isinstance(told, _Refusal):
                self._nack(delivery, requeue=False)
            else:
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

    def _progress(self, delivery: _Delivery, progress: _Progress) -> None:
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
        while True:
            try:
                delivery = self._work.get_nowait()
            except queue.Empty:
                return
            if delivery is not None and delivery.session is self:
                self._nack(delivery, requeue=True)

    def _close(self) -> None:
        try:
            if self._connection.is_open:
                self._connection.close()
        except (AMQPError, OSError) as error:
            log.debug("closing the connection: %s", error)


@dataclass(frozen=True)
class _Delivery:
    session: _Session
    queue: str
    tag: int
    redelivered: bool
    properties: pika.BasicProperties
    body: bytes

    @property
    def reply_to(self) -> str:
        return self.properties.reply_to or ""

    def given_back(self) -> dict[str, Any] | None:
        """The headers of what is said of this message: with its attempt, so that a late failure counts for no other."""
        attempt = (self.properties.headers or {}).get("attempt")
        return None if attempt is None else {"attempt": attempt}

    def step(self) -> Step:
        headers = self.properties.headers or {}
        uuid, _, name = (self.properties.correlation_id or "").partition(":")
        return Step(
            queue=self.queue,
            id=uuid,
            name=name,
            attempt=headers.get("attempt", 1),
            job=headers.get("job", uuid),
            workflow=headers.get("workflow", ""),
            redelivered=self.redelivered,
            headers=headers,
            _send_progress=lambda progress: self.session.tell(self, _Progress(_encode(progress))),
        )

    def __str__(self) -> str:
        return f"{self.queue}: message {self.properties.message_id or self.properties.correlation_id or self.tag}"


@dataclass(frozen=True)
class _Reply:
    body: bytes
    type: str | None = None


@dataclass(frozen=True)
class _Progress:
    body: bytes


class _Refusal:
    """The message is to be rejected, as nobody could be told; why has been logged."""


_Outcome = Union[_Reply, _Progress, _Refusal]
_Told = tuple[_Delivery, _Outcome]


@dataclass
class _HeldReply:
    delivery: _Delivery
    reply: _Reply
    since: float
    delay: float = RECONNECT_SECONDS_MIN
    due: float = 0.0

    def wait(self) -> None:
        self.due = time.monotonic() + self.delay
        self.delay = min(self.delay * 2, RECONNECT_SECONDS_MAX)


def _perform(handler: Handler, delivery: _Delivery) -> _Outcome:
    """Call the function. Whatever goes wrong in it is an outcome too: a worker survives its messages."""
    if not delivery.reply_to:
        log.error("%s: rejected: it has no reply_to, so nobody could learn its result", delivery)
        return _Refusal()
    try:
        message = _decode(delivery.body)
    except (ValueError, RecursionError) as error:
        log.error("%s: failed (not retryable): %s", delivery, error)
        return _error(f"the worker cannot read the message: {error}", retryable=False)

    started = time.monotonic()
    token = _CURRENT.set(delivery.step())
    try:
        reply = _reply_of(handler(message))
    except Failed as error:
        text = _text_of(error)
        log.warning("%s: failed (%s): %s", delivery, "retryable" if error.retryable else "not retryable", text)
        return _error(text, retryable=error.retryable)
    except BaseException as error:  # sys.exit() too: the message has failed, the worker goes on with the next
        log.exception("%s: failed (retryable): its function raised", delivery)
        return _error(": ".join(filter(None, [type(error).__name__, _text_of(error)])), retryable=True)
    finally:
        _CURRENT.reset(token)
    log.info("%s: done in %.3f s", delivery, time.monotonic() - started)
    return reply


def _error(text: str, *, retryable: bool) -> _Reply:
    if len(text) > ERROR_CHARS_MAX:
        text = f"{text[:ERROR_CHARS_MAX]}… ({len(text)} characters; the worker's log has all)"
    return _Reply(_encode({"error": text, "retryable": retryable}), "error")


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:
        return f"(its text cannot be read: {type(second).__name__})"


def _reply_of(output: Mapping[str, Any] | None) -> _Reply:
    if output is None:
        output = {}
    if not isinstance(output, Mapping):
        raise TypeError(f"a worker's function returns a dict or None, not {type(output).__name__}")
    body = _encode(output)
    if len(body) > REPLY_BYTES_MAX:
        raise Failed(f"the reply has {len(body)} bytes; RabbitMQ takes {REPLY_BYTES_MAX} at most")
    return _Reply(body)


def _decode(body: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        message = json.loads(body, parse_constant=refuse)
    except RecursionError:
        raise ValueError("its body is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"its body is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise ValueError(f"its body is a JSON {_json_type(message)}, not an object")
    return message


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, list):
        return "array"
    return "string" if isinstance(value, str) else "number"


def _encode(value: Mapping[str, Any]) -> bytes:
    # Escaped to ASCII, so that strings that UTF-8 cannot hold (lone surrogates) pass as they came. NaN is not JSON.
    return json.dumps(dict(value), allow_nan=False, separators=(",", ":")).encode("ascii")


def _parameters(amqp_server: str, queues: list[str]) -> pika.URLParameters:
    if urlsplit(amqp_server).scheme not in ("amqp", "amqps"):
        raise ValueError(f'the broker\'s address is "{_without_password(amqp_server)}", but should look like amqp://user:password@host:5672/%2f')
    parameters = pika.URLParameters(amqp_server)
    parameters.client_properties = {"connection_name": f"pyworker {','.join(queues)} {socket.gethostname()}:{os.getpid()}"}
    return parameters


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _reason(error: Exception) -> str:
    # pika wraps what the operating system said into exceptions, some of which have no text.
    while isinstance(error, AMQPConnectionError) and error.args and isinstance(error.args[0], Exception):
        error = error.args[0]
    inner = getattr(error, "exception", None)
    if isinstance(inner, Exception):
        error = inner
    text = getattr(error, "reply_text", None) or str(error)
    return text or type(error).__name__
