"""The addresses of managers of which one is active, and the one in use."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from ._work import without_password

#: Of gRPC it is the one of the documentation's examples.
_PORTS = {"http": 80, "https": 443, "grpc": 8089, "grpcs": 8089}
_SAFE = ("https", "grpcs")


@dataclass(frozen=True)
class Address:
    """A manager's address."""

    scheme: str
    host: str
    port: int
    prefix: str
    #: The virtual host of the queues, if one is named.
    query: tuple[tuple[str, str], ...] = field(compare=False)
    #: For the log.
    text: str = field(compare=False)

    @staticmethod
    def parse(url: str) -> Address:
        text = without_password(url)
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None:
            raise ValueError(f"the address of a manager ({text}) has no user: give its token in WORKFLOW_MANAGER_TOKEN")
        query = tuple(parse_qsl(parts.query))
        is_grpc = parts.scheme.startswith("grpc")
        has_path = is_grpc and parts.path.strip("/")
        if parts.scheme not in _PORTS or not parts.hostname or has_path or parts.fragment or set(dict(query)) - {"vhost"}:
            example = "grpc://host:8089" if is_grpc else "http://host:8088"
            raise ValueError(f'the manager\'s address is "{text}", but should look like {example} or {example}?vhost=name')
        try:
            port = parts.port or _PORTS[parts.scheme]
        except ValueError as error:
            raise ValueError(f'the manager\'s address is "{text}": {error}') from None
        return Address(parts.scheme, parts.hostname, port, parts.path.rstrip("/"), query, text)

    @property
    def is_safe(self) -> bool:
        """Whether what goes there is encrypted."""
        return self.scheme in _SAFE

    @property
    def target(self) -> str:
        """For gRPC."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def named(self, url: str) -> Address:
        """The address that a manager at this one has named. It has the same virtual host."""
        if not all(33 <= ord(letter) <= 126 for letter in url):
            raise ValueError("it is not the address of a manager")
        address = Address.parse(url)
        if address.query:
            raise ValueError("it is not the address of a manager")
        return Address(address.scheme, address.host, address.port, address.prefix, self.query, address.text)

    def path(self, path: str, **query: Optional[str]) -> str:
        """The target of a request. ``path`` may have a query."""
        path, _, given = path.partition("?")
        pairs = {key: value for key, value in {**dict(self.query), **dict(parse_qsl(given)), **query}.items() if value is not None}
        return f"{self.prefix}{path}{'?' if pairs else ''}{urlencode(pairs, quote_via=quote)}"

    def connect(self, seconds_max: float) -> http.client.HTTPConnection:
        if self.scheme == "https":
            return http.client.HTTPSConnection(self.host, self.port, timeout=seconds_max, context=ssl.create_default_context())
        return http.client.HTTPConnection(self.host, self.port, timeout=seconds_max)


class Addresses:
    """What was given, with commas in between, and the one in use. For all threads."""

    def __init__(self, text: str) -> None:
        self._listed = [Address.parse(part.strip()) for part in text.split(",")]
        shown = ", ".join(address.text for address in self._listed)
        schemes = sorted({address.scheme for address in self._listed})
        if len(schemes) > 1:
            both = len({address.is_safe for address in self._listed}) > 1
            why = "the token would go both in clear and encrypted" if both else "they need the same scheme"
            raise ValueError(f"the addresses {shown} mix {':// and '.join(schemes)}://: {why}")
        if len({address.query for address in self._listed}) > 1:
            raise ValueError(f"the addresses {shown} need the same vhost")
        self._lock = threading.Lock()
        self._index = 0
        self._current = self._listed[0]

    @property
    def current(self) -> Address:
        return self._current

    def leave(self, address: Address) -> None:
        """Go to the next of the list, unless another thread has left this one already."""
        with self._lock:
            if self._current == address:
                self._index = (self._index + 1) % len(self._listed)
                self._current = self._listed[self._index]

    def follow(self, address: Address, url: str) -> str:
        """Go where the manager at this address says that the active one is, be it of the list or not.

        Gives "" or why that is not done: it is no address, or the token would go there in clear. Then it is as ``leave``.
        """
        try:
            named = address.named(url)
            if self._listed[0].is_safe and not named.is_safe:
                raise ValueError("the token would go there in clear")
        except ValueError as error:
            self.leave(address)
            return f"; it names {url!r}, which is not asked: {error}"
        with self._lock:
            if self._current == address:
                self._current = named
                if named in self._listed:
                    self._index = self._listed.index(named)
        return ""


def several(tried: Mapping[Address, str]) -> str:
    """The addresses that were tried, with what was wrong at each."""
    return "; ".join(f"{address.text}: {problem}" for address, problem in tried.items())
