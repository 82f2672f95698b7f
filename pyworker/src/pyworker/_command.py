"""``run``: a worker program's one line. Reads the command line and the environment, sets up logs and signals."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

from ._step import Handler
from ._worker import Worker


def run(
    queue: str | Mapping[str, Handler],
    function: Handler | None = None,
    *,
    amqp_server: str | None = None,
    prefetch: int = 1,
    threads: int = 1,
    argv: Sequence[str] | None = None,
) -> None:
    """Serve one queue, ``run("book-split", split)``, or several, ``run({"a": fa, "b": fb})``, until a signal.

    The broker's address comes from ``--amqp-server``, else from ``amqp_server``, else from the environment's
    ``AMQP_SERVER``. ``--prefetch`` and ``--threads`` override the arguments of that name: how many messages are
    held per queue, and how many functions run at once. A program with a command line of its own passes
    ``argv=[]``.

    SIGTERM and SIGINT stop it cleanly: no new message is taken, those in hand are finished, replied and
    acknowledged, then ``run`` returns. A second signal ends the process at once; the broker then delivers the
    unacknowledged messages to another worker.
    """
    if isinstance(queue, str):
        if function is None:
            raise TypeError(f'run("{queue}", …) needs the function that does the work: run("{queue}", function)')
        handlers: Mapping[str, Handler] = {queue: function}
    else:
        if function is not None:
            raise TypeError("run takes a queue and a function, or one dict of queues and functions, not both")
        handlers = queue

    parser = argparse.ArgumentParser(description=f"Worker for {', '.join(handlers)}.")
    parser.add_argument("--amqp-server", metavar="URL", default=amqp_server or os.environ.get("AMQP_SERVER"))
    parser.add_argument("--prefetch", metavar="N", type=int, default=prefetch, help="messages held per queue (default %(default)s)")
    parser.add_argument("--threads", metavar="N", type=int, default=threads, help="functions running at once (default %(default)s)")
    arguments = parser.parse_args(sys.argv[1:] if argv is None else argv)
    if not arguments.amqp_server:
        parser.error("which broker? Set AMQP_SERVER or give --amqp-server, for example amqp://guest:guest@localhost:5672/%2f")

    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if logging.getLogger("pika").level == logging.NOTSET:
        # What it says about connections, page-long, the worker says in a line.
        logging.getLogger("pika").setLevel(logging.CRITICAL)
    try:
        worker = Worker(handlers, arguments.amqp_server, prefetch=arguments.prefetch, threads=arguments.threads)
    except ValueError as error:
        parser.error(str(error))

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if worker.stopping:
            os._exit(128 + number)
        worker.stop()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        worker.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
