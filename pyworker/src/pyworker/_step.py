"""What a worker's function sees: the step that it works on, and the exceptions that say how it failed."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Union

Output = Optional[Mapping[str, Any]]
Handler = Callable[[dict[str, Any]], Union[Output, Awaitable[Output]]]
"""Takes a step's message, gives its output; ``None`` is an empty output. It may be ``async def``."""


class Failed(Exception):
    """Raised by a worker's function: the attempt failed, for the reason given, and another one would too."""

    retryable = False


class Retryable(Failed):
    """Raised by a worker's function: the attempt failed, for the reason given; another one may succeed."""

    retryable = True


class Cancelled(Exception):
    """Raised by :meth:`Step.raise_if_cancelled`: the attempt is over. Let it pass: nothing is replied then."""


class Cancellation:
    """Whether an attempt is over, and why. For any thread."""

    def __init__(self) -> None:
        self.reason = ""
        self._set = threading.Event()
        self._lock = threading.Lock()
        self._calls: list[Callable[[], object]] = []

    @property
    def is_set(self) -> bool:
        return self._set.is_set()

    def set(self, reason: str) -> None:
        with self._lock:
            if self.is_set:
                return
            self.reason = reason
            self._set.set()
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    def then(self, call: Callable[[], object]) -> None:
        """Calls it once the attempt is over, which may be now."""
        with self._lock:
            if not self.is_set:
                self._calls.append(call)
                return
        call()


@dataclass(frozen=True)
class Step:
    """The step that the running function works on; see :func:`current`."""

    queue: str
    #: UUID of the job, or of the child job, that the step belongs to.
    id: str
    #: Name of the step in its workflow.
    name: str
    #: 1 for the first dispatch of the step, 2 for the first retry, and so on.
    attempt: int
    #: UUID of the top-level job; the same as ``id`` unless this is a step of a child job.
    job: str
    workflow: str
    #: This message was delivered before, perhaps to a worker that died: its work may be done in part.
    redelivered: bool
    #: All headers of the message, ``traceparent`` among them.
    headers: Mapping[str, Any] = field(repr=False)
    _send_progress: Callable[[dict[str, Any]], None] = field(repr=False, compare=False)
    _cancellation: Cancellation = field(repr=False, compare=False)

    @classmethod
    def of(
        cls,
        queue: str,
        correlation_id: str | None,
        headers: Mapping[str, Any],
        redelivered: bool,
        send_progress: Callable[[dict[str, Any]], None],
        cancellation: Cancellation,
    ) -> Step:
        """The step of a message. The ``correlation_id`` has its place: the job's id and the step's name."""
        uuid, _, name = (correlation_id or "").partition(":")
        return cls(
            queue=queue,
            id=uuid,
            name=name,
            attempt=headers.get("attempt", 1),
            job=headers.get("job", uuid),
            workflow=headers.get("workflow", ""),
            redelivered=redelivered,
            headers=headers,
            _send_progress=send_progress,
            _cancellation=cancellation,
        )

    @property
    def cancelled(self) -> bool:
        """Whether the manager has said that the attempt is over (cancelled, timed out, settled by another): what is
        done from now on is done for nothing. Over AMQP nobody says so. An ``async def`` function is cancelled by itself."""
        return self._cancellation.is_set

    def raise_if_cancelled(self) -> None:
        """Raises :class:`Cancelled` if the attempt is over."""
        if self.cancelled:
            raise Cancelled(self._cancellation.reason)

    def progress(self, progress: float | None = None, *, message: str | None = None, status: str | None = None) -> None:
        """Tell users how far the work is (0 to 1), in words, or by a status; it also restarts the step's timeout."""
        if progress is not None and not 0 <= progress <= 1:
            raise ValueError(f"progress is from 0 to 1, not {progress}")
        told = {"progress": progress, "message": message, "status": status}
        self._send_progress({key: value for key, value in told.items() if value is not None})


_CURRENT: contextvars.ContextVar[Step] = contextvars.ContextVar("pyworker.current")


def current() -> Step:
    """The step that the calling function works on. Only inside a worker's function, in the thread or task it was called in."""
    try:
        return _CURRENT.get()
    except LookupError:
        raise RuntimeError("pyworker.current() was called outside a worker's function (or in a thread that it started)") from None
