"""Limits the open connections of each client address to a listener.

A connection costs memory before its first byte, and a client that sends headers byte by byte holds it for as long
as the listener waits (slowloris). A connection beyond the limit gets an error at once and is closed. Trusted
proxies connect for many clients and have no limit. An IPv6 customer has a /64 at least, which counts as one
address.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

from gateway.domain.errors import TooManyConnections
from gateway.settings.types import Address, Network, address_of
from gateway.tenants.auth_throttle import address_group

ProtocolFactory = Callable[[], asyncio.Protocol]


class ConnectionLimiter:
    """Counts the open connections of each address. Connections from the networks `trusted` have no limit."""

    def __init__(self, per_address_max: int, trusted: Sequence[Network] = ()) -> None:
        self._per_address_max = per_address_max
        self._trusted = trusted
        self._open: Counter[int | None] = Counter()

    def __len__(self) -> int:
        """Return the number of addresses that have a connection."""
        return len(self._open)

    def counted(self, new: ProtocolFactory) -> ProtocolFactory:
        """Return a factory of protocols that count their connections."""
        return lambda: CountedConnection(self, new())

    def enter(self, address: Address) -> bool:
        """Count one more connection of an address; return False if the address has reached its limit."""
        at = address_group(address)
        if self._open[at] >= self._per_address_max and not any(
            address in network for network in self._trusted
        ):
            return False
        self._open[at] += 1
        return True

    def leave(self, address: Address) -> None:
        """Count one connection of an address as closed."""
        at = address_group(address)
        self._open[at] -= 1
        if not self._open[at]:
            del self._open[at]


class CountedConnection(asyncio.Protocol):
    """The protocol of one connection: events are passed to `inner`, unless the connection was refused."""

    def __init__(self, limiter: ConnectionLimiter, inner: asyncio.Protocol) -> None:
        self._limiter = limiter
        self._inner: asyncio.Protocol | None = inner
        self._address: Address | None = None
        # Bytes go to `inner` without a step between: a refused connection is closed, and gets none.
        self.data_received = inner.data_received  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or answer with an error and close it."""
        peer = transport.get_extra_info("peername")
        address = address_of(peer[0]) if isinstance(peer, tuple) else None
        if address is not None and not self._limiter.enter(address):
            self._inner = None
            # uvloop's transports are not instances of asyncio.WriteTransport.
            cast(asyncio.WriteTransport, transport).write(_error_bytes())
            transport.close()
            return
        self._address = address
        assert self._inner is not None
        self._inner.connection_made(transport)

    def eof_received(self) -> bool | None:
        """Pass the end of data on."""
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        """Pass on that the send buffer is full."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the send buffer has room."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection as closed, and pass the event on."""
        if self._address is not None:
            self._limiter.leave(self._address)
        if self._inner is not None:
            self._inner.connection_lost(exc)


def _error_bytes() -> bytes:
    """Return a whole HTTP answer, which is sent before any request has arrived."""
    error = TooManyConnections()
    body = error.body()
    lines = [
        f"HTTP/1.1 {error.status} Too Many Requests",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        *(f"{name}: {value}" for name, value in error.headers().items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
