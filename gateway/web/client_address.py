"""Where a client is: at the other end of the connection, or where a trusted proxy says.

    X-Forwarded-For: 6.6.6.6, 203.0.113.9, 10.0.0.7        connection from 10.0.0.5
                     anybody  the client   trusted         trusted
                     wrote it

Every hop adds whom it was called by, so the list is read from its end, for as long as the hops are trusted.
"""

from collections.abc import Callable, Sequence

from aiohttp import web

from gateway.settings.types import Address, Network, address_of

FORWARDED_FOR = "X-Forwarded-For"
HOPS_MAX = 20

FindAddress = Callable[[web.Request], Address | None]


def finder(proxies: Sequence[Network]) -> FindAddress:
    """`proxies`: whose word is taken. A unix socket's caller is trusted: it has no address of its own."""

    def trusted(address: Address) -> bool:
        return any(address in network for network in proxies)

    def find(http: web.Request) -> Address | None:
        peer = address_of(http.remote or "")
        if peer is not None and not trusted(peer):
            return peer
        found = peer
        for hop in reversed(_hops(http)):
            address = address_of(hop)
            if address is None:
                # What a trusted hop calls an address and is none tells nothing of who is behind it.
                return None
            found = address
            if not trusted(address):
                break
        return found

    return find


def _hops(http: web.Request) -> list[str]:
    joined = ",".join(http.headers.getall(FORWARDED_FOR, ()))
    return [hop.strip() for hop in joined.split(",") if hop.strip()][-HOPS_MAX:]
