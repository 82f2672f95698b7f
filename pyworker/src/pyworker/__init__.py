"""A worker of workflow-manager is a function and one line.

>>> from pyworker import run
>>> def split(message: dict) -> dict:
...     return {"filename": message["filename"], "sections": []}
>>> run("book-split", split)  # doctest: +SKIP

``run`` takes step messages from the queue, over gRPC, HTTP or AMQP, calls the function with the message, a ``dict``, and
replies with what it returns. See the README for what happens on errors, lost connections and signals.
"""

from ._command import run
from ._step import Cancelled, Failed, Handler, Retryable, Step, current
from ._worker import Worker

__all__ = ["Cancelled", "Failed", "Handler", "Retryable", "Step", "Worker", "current", "run"]
