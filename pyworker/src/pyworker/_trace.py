"""A span around a worker's function, where the package ``opentelemetry-api`` is installed.

Its parent is the attempt that the message is of: the manager's span, or that of whoever asked for the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from ._step import Cancelled, Step

try:
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanKind, Status, StatusCode, get_tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    is_available = False
else:
    is_available = True


def span_of(step: Step, system: str) -> AbstractContextManager[None]:
    """The span of the function that works on a step, which the calling thread or task is in. ``system`` brought the message."""
    return _span_of(step, system) if is_available else nullcontext()


@contextmanager
def _span_of(step: Step, system: str) -> Iterator[None]:
    # As the manager writes it, whatever propagators the program has chosen for its own messages.
    told = {name: value for name in ("traceparent", "tracestate") if isinstance(value := step.headers.get(name), str)}
    attributes = {
        "messaging.system": system,
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": step.queue,
        "messaging.message.conversation_id": f"{step.id}:{step.name}",
        "workflow.name": step.workflow,
        "workflow.job.id": step.id,
        "workflow.step.name": step.name,
        "workflow.attempt": step.attempt,
    }
    started = get_tracer("pyworker").start_as_current_span(
        f"process {step.queue}",
        context=TraceContextTextMapPropagator().extract(told, context=Context()),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    )
    with started as span:
        try:
            yield
        except (Cancelled, asyncio.CancelledError):
            raise
        except BaseException as error:
            span.set_status(Status(StatusCode.ERROR))
            # Its text may be unreadable: the exception itself is what counts.
            with suppress(Exception):
                span.record_exception(error)
            raise
