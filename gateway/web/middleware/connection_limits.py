"""ConnectionLimiter of one listener: how many each address may have, whatever comes in on them.

A connection costs memory before its first byte, and who sends headers byte by byte holds it for as long as the
listener waits (slowloris). So who has as many as are allowed gets an answer at once, and no more of our memory.
Proxies that are trusted stand for many clients and have no bound. An IPv6 customer has a /64 at least: one address.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

from gateway.domain.errors import TooManyConnections
from gateway.settings.types import Address, Network, address_of
from gateway.tenants.auth_throttle import place

ProtocolFactory = Callable[[], asyncio.Protocol]


class ConnectionLimiter:
    """`per_address_max`: of one address. `trusted`: whose are not counted."""

    def __init__(self, per_address_max: int, trusted: Sequence[Network] = ()) -> None:
        self._per_address_max = per_address_max
        self._trusted = trusted
        self._open: Counter[int | None] = Counter()

    def __len__(self) -> int:
        """Addresses that have any."""
        return len(self._open)

    def counted(self, new: ProtocolFactory) -> ProtocolFactory:
        """What a server makes for each connection, and counts."""
        return lambda: CountedConnection(self, new())

    def enter(self, address: Address) -> bool:
        """One more from there. False: it has as many as it may."""
        at = place(address)
        if self._open[at] >= self._per_address_max and not any(
            address in network for network in self._trusted
        ):
            return False
        self._open[at] += 1
        return True

    def leave(self, address: Address) -> None:
        at = place(address)
        self._open[at] -= 1
        if not self._open[at]:
            del self._open[at]


class CountedConnection(asyncio.Protocol):
    """One connection: everything goes on to `inner`, unless it may not come in."""

    def __init__(self, limiter: ConnectionLimiter, inner: asyncio.Protocol) -> None:
        self._limiter = limiter
        self._inner: asyncio.Protocol | None = inner
        self._address: Address | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        address = address_of(peer[0]) if isinstance(peer, tuple) else None
        if address is not None and not self._limiter.enter(address):
            self._inner = None
            # uvloop's own transports are none of asyncio's.
            cast(asyncio.WriteTransport, transport).write(_refusal())
            transport.close()
            return
        self._address = address
        assert self._inner is not None
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._address is not None:
            self._limiter.leave(self._address)
        if self._inner is not None:
            self._inner.connection_lost(exc)


def _refusal() -> bytes:
    """A whole answer, also for whoever has not asked yet."""
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
