"""The worker: the scheme of the server's address chooses what brings the messages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from ._step import Handler
from ._work import Performer, log, without_password

LEASE_SECONDS_DEFAULT = 60.0


class Worker:
    """Serves queues, each with its function; :func:`pyworker.run` wraps it into a program.

    ``server`` is the address of a manager that runs without a broker, ``grpc://``, ``grpcs://``, ``http://`` or
    ``https://``, or that of a broker, ``amqp://`` or ``amqps://``. ``prefetch`` is the number of messages held per queue, ``threads`` the number of
    functions running at once; those that are ``async def`` all run at once.

    Over gRPC and HTTP, ``token`` is that of the manager (default: the environment's ``WORKFLOW_MANAGER_TOKEN``), and after
    ``lease`` seconds without a word of this process the manager gives its messages to others.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        server: str,
        *,
        prefetch: int = 1,
        threads: int = 1,
        token: str | None = None,
        lease: float = LEASE_SECONDS_DEFAULT,
    ) -> None:
        if not handlers:
            raise ValueError("a worker needs at least one queue")
        if not 1 <= prefetch <= 65535:
            raise ValueError(f"prefetch is from 1 to 65535, not {prefetch}")
        if threads < 1:
            raise ValueError(f"threads is at least 1, not {threads}")
        if not 1 <= lease <= 43200:
            raise ValueError(f"lease is from 1 to 43200 seconds, not {lease:g}")
        self._stopping = False
        self._performer = Performer(handlers, threads)
        scheme = urlsplit(server).scheme
        queues = list(handlers)
        token = (os.environ.get("WORKFLOW_MANAGER_TOKEN") if token is None else token) or ""
        # Imported where it is used: over HTTP nothing but the standard library is needed.
        if scheme in ("amqp", "amqps"):
            from . import _amqp

            self._transport: _amqp.Transport | _grpc.Transport | _http.Transport = _amqp.Transport(
                queues, server, prefetch, self._performer
            )
        elif scheme in ("grpc", "grpcs"):
            try:
                from . import _grpc
            except ImportError as error:
                raise ValueError(f'a worker over gRPC needs two more packages ({error}): pip install "pyworker[grpc]"') from None
            self._transport = _grpc.Transport(queues, server, prefetch, self._performer, token=token, lease=lease)
        elif scheme in ("http", "https"):
            from . import _http

            self._transport = _http.Transport(queues, server, prefetch, self._performer, token=token, lease=lease)
        else:
            raise ValueError(
                f'the server\'s address is "{without_password(server)}", but should look like '
                "http://host:8088 or grpc://host:8089 (the manager), or amqp://user:password@host:5672/%2f (a broker)"
            )

    @property
    def stopping(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopping

    def stop(self) -> None:
        """Finish the messages in hand and make :meth:`run` return. May be called from any thread or signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Serve until :meth:`stop` is called, through every loss of the server."""
        self._performer.start()
        self._transport.run(lambda: self._stopping)
        self._performer.stop()
        log.info("stopped")
