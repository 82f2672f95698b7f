"""Over gRPC: a message in hand."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable

from ._step import Cancellation, Step
from ._work import Delivery, Outcome, Progress, Reply

if TYPE_CHECKING:
    from ._grpc import Feed
    from ._grpc_session import Session


class Telling:
    """A progress that waits for its answer."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.problem = ""
        self.answered = threading.Event()

    def answer(self, problem: str = "") -> None:
        self.problem = problem
        self.answered.set()


class GrpcDelivery(Delivery):
    system = "workflow_manager"

    def __init__(self, feed: Feed, message: Any) -> None:
        self.feed = feed
        self.queue = feed.queue
        self.body = message.body
        self.cancellation = Cancellation()
        #: Of a message that came again there are several; the last one is in force.
        self.receipts: list[str] = [message.receipt]
        self.message_id: str = message.message_id
        self.extend_at = 0.0
        self.is_lease_lost = False
        #: What is to be replied, since when, and the stream on which it was said.
        self.reply: Reply | None = None
        self.reply_since = 0.0
        self.said_on: Session | None = None
        self.telling: Telling | None = None
        #: Its requests go one after the other: the answers to a progress and to a reply look the same.
        self.turn = threading.Lock()
        self._message = message

    @property
    def receipt(self) -> str:
        return self.receipts[-1]

    @property
    def reply_to(self) -> str:
        return self.receipt

    @property
    def is_stale(self) -> bool:
        return self.cancellation.is_set or self.is_lease_lost

    def tell(self, outcome: Outcome) -> None:
        if isinstance(outcome, Progress):
            self.feed.progress(self, outcome)
        elif isinstance(outcome, Reply):
            self.feed.reply(self, outcome)
        else:
            self.feed.settled(self)

    def step(self, send_progress: Callable[[dict[str, Any]], None]) -> Step:
        message = self._message
        headers = {"workflow": message.workflow, "job": message.job, "attempt": message.attempt}
        if message.traceparent:
            headers["traceparent"] = message.traceparent
        for key in ("depth", "priority", "tracestate"):
            if message.HasField(key):
                headers[key] = getattr(message, key)
        return Step.of(self.queue, message.correlation_id, headers, message.delivery > 1, send_progress, self.cancellation)

    def __str__(self) -> str:
        return f"{self.queue}: message {self.message_id}"
