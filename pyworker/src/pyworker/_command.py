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
from ._worker import LEASE_SECONDS_DEFAULT, Worker

SERVER_DEFAULT = "http://127.0.0.1:8088"


def run(
    queue: str | Mapping[str, Handler],
    function: Handler | None = None,
    *,
    server: str | None = None,
    amqp_server: str | None = None,
    prefetch: int = 1,
    threads: int = 1,
    token: str | None = None,
    lease: float = LEASE_SECONDS_DEFAULT,
    argv: Sequence[str] | None = None,
) -> None:
    """Serve one queue, ``run("book-split", split)``, or several, ``run({"a": fa, "b": fb})``, until a signal.

    The address is that of a manager that runs without a broker (``grpc://…`` or ``http://…``), or of a broker
    (``amqp://…``). It comes from ``--server``, else from ``server``, else from the environment's ``AMQP_SERVER``, else from its
    ``WORKFLOW_MANAGER_URL``, else it is http://127.0.0.1:8088. ``--prefetch``, ``--threads`` and ``--lease``
    override the arguments of that name: how many messages are held per queue, how many functions run at once, and
    after how many seconds without a word of this process a manager gives its messages to others. A manager's
    ``token`` is that of the environment's ``WORKFLOW_MANAGER_TOKEN`` unless it is given. A program with a command
    line of its own passes ``argv=[]``. ``amqp_server`` and ``--amqp-server`` are older names.

    SIGTERM and SIGINT stop it cleanly: no new message is taken, those in hand are finished, replied and
    acknowledged, then ``run`` returns. A second signal ends the process at once; other workers then get the messages.
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
    address = server or amqp_server or os.environ.get("AMQP_SERVER") or os.environ.get("WORKFLOW_MANAGER_URL") or SERVER_DEFAULT
    parser.add_argument(
        "--server",
        "--amqp-server",
        metavar="URL",
        default=address,
        help="the manager, grpc://host:8089 or http://host:8088, or a broker, amqp://user:password@host:5672/%%2f "
        f"[env: AMQP_SERVER, else WORKFLOW_MANAGER_URL] [default: {SERVER_DEFAULT}]",
    )
    parser.add_argument("--prefetch", metavar="N", type=int, default=prefetch, help="messages held per queue (default %(default)s)")
    parser.add_argument("--threads", metavar="N", type=int, default=threads, help="functions running at once (default %(default)s)")
    parser.add_argument("--lease", metavar="S", type=float, default=lease, help="over gRPC and HTTP: seconds without a word of this process, after which others get its messages (default %(default)g)")
    arguments = parser.parse_args(sys.argv[1:] if argv is None else argv)

    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if logging.getLogger("pika").level == logging.NOTSET:
        # What it says about connections, page-long, the worker says in a line.
        logging.getLogger("pika").setLevel(logging.CRITICAL)
    # The same of gRPC.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        worker = Worker(
            handlers, arguments.server, prefetch=arguments.prefetch, threads=arguments.threads, token=token, lease=arguments.lease
        )
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
