"""What both transports share: a message is given to its function, and what becomes of it is an outcome.

Functions run in threads. Those that are ``async def`` run on one event loop, which has a thread of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, NoReturn, Optional, Union
from urllib.parse import urlsplit

from ._step import _CURRENT, Cancellation, Cancelled, Failed, Handler, Step
from ._trace import span_of

log = logging.getLogger("pyworker")

RECONNECT_SECONDS_MIN = 1.0
RECONNECT_SECONDS_MAX = 30.0
#: How soon a stop is noticed while nothing else happens.
TICK_SECONDS = 0.25
#: How much of an error's text is told, in characters; the manager keeps 4 KiB. The log has all of it.
ERROR_CHARS_MAX = 4000
#: Threads that tell what ``async def`` functions have to say; each waits until it is told.
TELLERS_MAX = 16


@dataclass(frozen=True)
class Reply:
    body: bytes
    type: Optional[str] = None


@dataclass(frozen=True)
class Progress:
    body: bytes


class Refusal:
    """The message is to be rejected, as nobody could be told; why has been logged."""


class Dropped:
    """Nothing is to be told: the attempt is over, and its function has stopped for that reason."""


Outcome = Union[Reply, Progress, Refusal, Dropped]

#: In place of a message: its body is to be read.
UNREAD = object()


class Delivery(ABC):
    """A message in hand, whatever brought it."""

    #: What brings it, by the name that OpenTelemetry has for it.
    system: str
    queue: str
    body: bytes
    cancellation: Cancellation
    reply_bytes_max: Optional[int] = None
    #: The message, if it has been read already.
    message: Any = UNREAD

    @property
    @abstractmethod
    def reply_to(self) -> str: ...

    @property
    @abstractmethod
    def is_stale(self) -> bool:
        """Nothing that is done for it counts any more: it is not worth beginning."""

    @abstractmethod
    def step(self, send_progress: Callable[[dict[str, Any]], None]) -> Step: ...

    @abstractmethod
    def tell(self, outcome: Outcome) -> None:
        """Hand over what became of it. May wait, and is called by any thread."""


class Performer:
    """Runs the functions."""

    def __init__(self, handlers: Mapping[str, Handler], threads: int) -> None:
        self._handlers = dict(handlers)
        self._threads = threads
        self._work: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tellers: ThreadPoolExecutor | None = None

    def start(self) -> None:
        for index in range(self._threads):
            threading.Thread(target=self._perform_all, name=f"pyworker-{index}", daemon=True).start()
        if any(_is_async(handler) for handler in self._handlers.values()):
            self._tellers = ThreadPoolExecutor(TELLERS_MAX, "pyworker-teller")
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="pyworker-loop", daemon=True).start()

    def put(self, delivery: Delivery) -> None:
        """Work on it, as soon as a thread is free; at once if its function is ``async def``."""
        if _is_async(self._handlers[delivery.queue]):
            assert self._loop is not None
            asyncio.run_coroutine_threadsafe(self._perform_async(delivery), self._loop)
        else:
            self._work.put(delivery)

    def not_begun(self) -> Iterator[Delivery]:
        """Gives back what no thread has begun."""
        while True:
            try:
                delivery = self._work.get_nowait()
            except queue.Empty:
                return
            if delivery is not None:
                yield delivery

    def stop(self) -> None:
        """Nothing is in hand any more."""
        for _ in range(self._threads):
            self._work.put(None)
        if self._tellers is not None:
            self._tellers.shutdown(wait=False)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _perform_all(self) -> None:
        while True:
            delivery = self._work.get()
            if delivery is None:
                return
            delivery.tell(Dropped() if delivery.is_stale else self._perform(delivery))

    def _perform(self, delivery: Delivery) -> Outcome:
        message = _message_of(delivery)
        if not isinstance(message, dict):
            return message
        started = time.monotonic()
        step = delivery.step(lambda told: delivery.tell(Progress(_encode(told))))
        token = _CURRENT.set(step)
        try:
            with span_of(step, delivery.system):
                output: Any = self._handlers[delivery.queue](message)
                reply = _reply_of(delivery, output)
        except BaseException as error:  # sys.exit() too: the message has failed, the worker goes on with the next
            return _failure(delivery, error)
        finally:
            _CURRENT.reset(token)
        log.debug("%s: done in %.3f s", delivery, time.monotonic() - started)
        return reply

    async def _perform_async(self, delivery: Delivery) -> None:
        assert self._loop is not None and self._tellers is not None
        loop, teller = self._loop, _Teller(delivery, self._tellers)
        # A task of its own: cancelling it leaves this one to tell what became of it.
        task = loop.create_task(self._call(delivery, teller))
        delivery.cancellation.then(lambda: loop.call_soon_threadsafe(task.cancel))
        # wait, as gather or a plain await would raise what ends the program: sys.exit() in a function must not.
        await asyncio.wait([task])
        outcome = Dropped() if task.cancelled() else task.result()
        await asyncio.wrap_future(teller.tell(outcome))

    async def _call(self, delivery: Delivery, teller: _Teller) -> Outcome:
        if delivery.is_stale:
            return Dropped()
        message = _message_of(delivery)
        if not isinstance(message, dict):
            return message
        started = time.monotonic()
        step = delivery.step(teller.tell_progress)
        _CURRENT.set(step)
        try:
            with span_of(step, delivery.system):
                coroutine: Any = self._handlers[delivery.queue](message)
                reply = _reply_of(delivery, await coroutine)
        except BaseException as error:
            return _failure(delivery, error)
        log.debug("%s: done in %.3f s", delivery, time.monotonic() - started)
        return reply


class _Teller:
    """Tells what one ``async def`` function has to say, in its order, without blocking the event loop."""

    def __init__(self, delivery: Delivery, pool: ThreadPoolExecutor) -> None:
        self._delivery = delivery
        self._pool = pool
        self._outcomes: deque[Outcome] = deque()
        self._lock = threading.Lock()

    def tell(self, outcome: Outcome) -> Future[None]:
        self._outcomes.append(outcome)
        return self._pool.submit(self._flush)

    def tell_progress(self, told: dict[str, Any]) -> None:
        self.tell(Progress(_encode(told)))

    def _flush(self) -> None:
        with self._lock:
            while self._outcomes:
                self._delivery.tell(self._outcomes.popleft())


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))


def _message_of(delivery: Delivery) -> dict[str, Any] | Outcome:
    if not delivery.reply_to:
        log.error("%s: rejected: it has no reply_to, so nobody could learn its result", delivery)
        return Refusal()
    try:
        return _checked(_parsed(delivery.body) if delivery.message is UNREAD else delivery.message)
    except (ValueError, RecursionError) as error:
        log.error("%s: failed (not retryable): %s", delivery, error)
        return error_reply(f"the worker cannot read the message: {error}", retryable=False)


def _failure(delivery: Delivery, error: BaseException) -> Outcome:
    if isinstance(error, (Cancelled, asyncio.CancelledError)) and delivery.cancellation.is_set:
        log.info("%s: stopped: %s", delivery, delivery.cancellation.reason)
        return Dropped()
    if isinstance(error, Failed):
        text = _text_of(error)
        log.warning("%s: failed (%s): %s", delivery, "retryable" if error.retryable else "not retryable", text)
        return error_reply(text, retryable=error.retryable)
    log.error("%s: failed (retryable): its function raised", delivery, exc_info=error)
    return error_reply(": ".join(filter(None, [type(error).__name__, _text_of(error)])), retryable=True)


def error_reply(text: str, *, retryable: bool) -> Reply:
    if len(text) > ERROR_CHARS_MAX:
        text = f"{text[:ERROR_CHARS_MAX]}… ({len(text)} characters; the worker's log has all)"
    return Reply(_encode({"error": text, "retryable": retryable}), "error")


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:
        return f"(its text cannot be read: {type(second).__name__})"


def _reply_of(delivery: Delivery, output: Mapping[str, Any] | None) -> Reply:
    if output is None:
        output = {}
    if not isinstance(output, Mapping):
        raise TypeError(f"a worker's function returns a dict or None, not {type(output).__name__}")
    body = _encode(output)
    if delivery.reply_bytes_max is not None and len(body) > delivery.reply_bytes_max:
        raise Failed(f"the reply has {len(body)} bytes; RabbitMQ takes {delivery.reply_bytes_max} at most")
    return Reply(body)


def _parsed(body: bytes) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(body, parse_constant=refuse)
    except RecursionError:
        raise ValueError("its body is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"its body is not JSON: {error}") from None


def _checked(message: Any) -> dict[str, Any]:
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


def sleep(seconds: float, stopping: Callable[[], bool]) -> None:
    """In short naps: a signal handler may set a flag but must not touch a lock."""
    end = time.monotonic() + seconds
    while not stopping() and time.monotonic() < end:
        time.sleep(TICK_SECONDS / 4)


def without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
