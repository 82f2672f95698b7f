"""Over gRPC: one stream, from its connection to its end."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import grpc

from . import _grpc_wire as wire
from ._addresses import Address
from ._grpc_delivery import GrpcDelivery
from ._grpc_outbox import Outbox
from ._http import CONNECT_SECONDS_MAX
from ._work import Reply

if TYPE_CHECKING:
    from ._grpc import Feed

#: How often a connection is asked whether its other end is there, and how long the answer may take.
KEEP_ALIVE_SECONDS = 30.0
KEEP_ALIVE_ANSWER_SECONDS_MAX = 10.0

#: With these the manager says that it will not have this worker. With any other one it may be elsewhere.
_REFUSED = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
)

_OPTIONS = [
    # A message may be as large as the manager takes it.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", round(KEEP_ALIVE_SECONDS * 1000)),
    ("grpc.keepalive_timeout_ms", round(KEEP_ALIVE_ANSWER_SECONDS_MAX * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
    # How long a connection may take to be made. The pauses between two are this library's.
    ("grpc.min_reconnect_backoff_ms", round(CONNECT_SECONDS_MAX * 1000)),
    ("grpc.use_local_subchannel_pool", 1),
    # As over HTTP, proxies named in the environment are not used.
    ("grpc.enable_http_proxy", 0),
]


@dataclass(frozen=True)
class End:
    """How a stream has ended."""

    code: Any
    text: str

    @property
    def is_refusal(self) -> bool:
        return self.code in _REFUSED

    def __str__(self) -> str:
        return self.text if self.code is None else f"{self.code.name} {self.text}"


class Session:
    """A stream. One thread hears; any thread may say something."""

    def __init__(self, feed: Feed, address: Address, tried: Mapping[Address, str]) -> None:
        self.address = address
        #: Those that were tried before.
        self.tried = tried
        #: Something was heard: the manager has taken the worker's hello.
        self.is_established = False
        self.is_draining = False
        #: How many messages are wanted that have not come.
        self.credit = 0
        #: The receipts whose leases are to be extended, until the manager has answered.
        self.extending: set[str] = set()
        #: Since when nothing was heard although something was asked.
        self.silent_since: Optional[float] = time.monotonic()
        self.farewell_at: Optional[float] = None
        self._feed = feed
        self._outbox = Outbox()
        self._call: Any = None
        self._aborted = ""

    # ---- the thread that hears

    def run(self) -> End:
        """Until the stream ends."""
        channel = self._channel()
        try:
            work = channel.stream_stream(
                wire.WORK, request_serializer=wire.FromWorker.SerializeToString, response_deserializer=wire.ToWorker.FromString
            )
            self._call = work(iter(self._outbox), metadata=self._feed.transport.metadata)
            self._feed.begin(self)
            for heard in self._call:
                self.silent_since = None
                self._feed.hear(self, heard)
            return End(None, "the manager has ended the stream")
        except grpc.RpcError as error:
            return End(None, self._aborted) if self._aborted else End(error.code(), error.details() or "")
        finally:
            self._outbox.end()
            channel.close()

    def _channel(self) -> Any:
        if not self.address.is_safe:
            return grpc.insecure_channel(self.address.target, options=_OPTIONS)
        return grpc.secure_channel(self.address.target, grpc.ssl_channel_credentials(authorities()), options=_OPTIONS)

    # ---- any thread

    def hello(self, queue: str, lease: float, vhost: str) -> None:
        self._outbox.put("hello", {"queues": [queue], "lease": wire.span(lease), "vhost": vhost, "batches": True})

    def allow_batches(self, batches: Any) -> None:
        """The manager takes them. An earlier one never says so, and hears one thing at a time."""
        self._outbox.allow_batches(batches)

    def want(self, messages: int) -> None:
        self.credit += messages
        self._outbox.put("want", {"messages": messages})

    def extend(self, delivery: GrpcDelivery, lease: float) -> None:
        self.extending.add(delivery.receipt)
        self._ask("extend", {"receipt": delivery.receipt, "lease": wire.span(lease)})

    def ask_for_a_sign(self) -> None:
        """A hello has no answer of its own. The answer to this, which is for no message, says that it was taken."""
        self._ask("extend", {"receipt": ""})

    def reply(self, delivery: GrpcDelivery, reply: Reply) -> None:
        kind = wire.RESULT if reply.type is None else wire.ERROR
        delivery.said_on = self
        self._ask("reply", {"receipt": delivery.receipt, "kind": kind, "body": reply.body})

    def progress(self, delivery: GrpcDelivery, body: bytes) -> None:
        self._ask("reply", {"receipt": delivery.receipt, "kind": wire.PROGRESS, "body": body})

    def farewell(self) -> None:
        """Nothing more is said; what is still open is answered."""
        if self.farewell_at is None:
            self.farewell_at = time.monotonic()
            self._outbox.end()

    def abort(self, why: str) -> None:
        self._aborted = why
        if self._call is not None:
            self._call.cancel()

    def _ask(self, kind: str, what: dict[str, Any]) -> None:
        if self.silent_since is None:
            self.silent_since = time.monotonic()
        self._outbox.put(kind, what)


def authorities() -> Optional[bytes]:
    """Those whose certificates are believed: the system's, or those that the environment names, as over HTTP."""
    cafile = ssl.get_default_verify_paths().cafile
    if cafile:
        return Path(cafile).read_bytes()
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, found)).encode("ascii") or None
