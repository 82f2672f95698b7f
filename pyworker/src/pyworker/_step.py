"""What a worker's function sees: the step that it works on, and the exceptions that say how it failed."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

Handler = Callable[[dict[str, Any]], Optional[Mapping[str, Any]]]
"""Takes a step's message, gives its output; ``None`` is an empty output."""


class Failed(Exception):
    """Raised by a worker's function: the attempt failed, for the reason given, and another one would too."""

    retryable = False


class Retryable(Failed):
    """Raised by a worker's function: the attempt failed, for the reason given; another one may succeed."""

    retryable = True


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
    #: The broker delivered this message before, perhaps to a worker that died: its work may be done in part.
    redelivered: bool
    #: All headers of the message, ``traceparent`` among them.
    headers: Mapping[str, Any] = field(repr=False)
    _send_progress: Callable[[dict[str, Any]], None] = field(repr=False, compare=False)

    def progress(self, progress: float | None = None, *, message: str | None = None, status: str | None = None) -> None:
        """Tell users how far the work is (0 to 1), in words, or by a status; it also restarts the step's timeout."""
        if progress is not None and not 0 <= progress <= 1:
            raise ValueError(f"progress is from 0 to 1, not {progress}")
        told = {"progress": progress, "message": message, "status": status}
        self._send_progress({key: value for key, value in told.items() if value is not None})


_CURRENT: contextvars.ContextVar[Step] = contextvars.ContextVar("pyworker.current")


def current() -> Step:
    """The step that the calling function works on. Only inside a worker's function, in the thread it was called in."""
    try:
        return _CURRENT.get()
    except LookupError:
        raise RuntimeError("pyworker.current() was called outside a worker's function (or in a thread that it started)") from None
