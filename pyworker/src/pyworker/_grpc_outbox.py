"""Over gRPC: what is to be said on a stream, in its order. What waits together goes together, once the manager takes batches."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterator
from typing import Any, Optional

from . import _grpc_wire as wire

#: The replies of a batch, together. A larger one goes alone.
BATCH_BYTES_MAX = 1 << 16
#: What a reply has besides its receipt and its body at most, and what a batch has besides its replies.
OVERHEAD_BYTES = 32

#: The kind of what is said, and its fields.
Said = tuple[str, dict[str, Any]]


class Outbox:
    """Any thread puts something in. grpcio takes out what goes next as soon as what was said before is on its way."""

    def __init__(self) -> None:
        self._said: queue.SimpleQueue[Optional[Said]] = queue.SimpleQueue()
        #: What a batch may have: none until the manager has said that it takes batches.
        self._replies_max = self._bytes_max = 0

    def put(self, kind: str, what: dict[str, Any]) -> None:
        self._said.put((kind, what))

    def end(self) -> None:
        """Nothing more is said."""
        self._said.put(None)

    def allow_batches(self, batches: Any) -> None:
        self._replies_max = batches.replies_max
        self._bytes_max = min(batches.bytes_max, BATCH_BYTES_MAX) - OVERHEAD_BYTES

    def __iter__(self) -> Iterator[Any]:
        waiting: deque[Optional[Said]] = deque()
        while True:
            if not waiting:
                waiting.append(self._said.get())
            for _ in range(self._said.qsize()):
                waiting.append(self._said.get())
            if waiting[0] is None:
                return
            yield self._next(waiting)

    def _next(self, waiting: deque[Optional[Said]]) -> Any:
        """All in front that can go together, or the first one alone."""
        replies: list[dict[str, Any]] = []
        wanted, room = 0, self._bytes_max
        while waiting and (said := waiting[0]) is not None:
            kind, what = said
            if kind == "want":
                wanted += what["messages"]
            elif kind == "reply":
                room -= len(what["body"]) + len(what["receipt"].encode()) + OVERHEAD_BYTES
                if room < 0 or len(replies) == self._replies_max:
                    break
                replies.append(what)
            else:
                break
            waiting.popleft()
        if len(replies) > 1 or (replies and wanted):
            return wire.FromWorker(batch={"replies": replies, "want": wanted})
        if replies:
            return wire.FromWorker(reply=replies[0])
        if wanted:
            return wire.FromWorker(want={"messages": wanted})
        kind, what = waiting.popleft()  # type: ignore[misc]  # None was looked for before.
        return wire.FromWorker(**{kind: what})
