"""The address of a client: that of the connection, or the one that a trusted proxy reports.

    X-Forwarded-For: 6.6.6.6, 203.0.113.9, 10.0.0.7        connection from 10.0.0.5
                     forged   the client   trusted         trusted

Every proxy appends the address of its caller, so the list is read from its end, for as long as the addresses are
those of trusted proxies.
"""

from collections.abc import Callable, Iterable, Sequence

from aiohttp import web

from gateway.settings.types import Address, Network, address_of

FORWARDED_FOR = "x-forwarded-for"
HOPS_MAX = 20
"""The most addresses of the header that are examined."""

FindAddress = Callable[[web.Request], Address | None]
"""Return the address of a request's client; None if it is unknown."""


def address_finder(proxies: Sequence[Network]) -> FindAddress:
    """Return a function that finds the address of a request's client.

    `proxies` are the trusted networks. The caller of a unix socket has no address of its own, and is trusted.
    """

    def find(http: web.Request) -> Address | None:
        forwarded = http.headers.getall(FORWARDED_FOR, ())
        return client_address(address_of(http.remote or ""), forwarded, proxies)

    return find


def client_address(
    peer: Address | None, forwarded: Iterable[str], proxies: Sequence[Network]
) -> Address | None:
    """Return the address of a client; None if it is unknown.

    Args:
        peer: The other end of the connection; None for one without an address, which is trusted.
        forwarded: The values of all `X-Forwarded-For` headers.
        proxies: The trusted networks.
    """

    def trusted(address: Address) -> bool:
        return any(address in network for network in proxies)

    if peer is not None and not trusted(peer):
        return peer
    found = peer
    for hop in reversed(_hops(forwarded)):
        address = address_of(hop)
        if address is None:
            # A trusted proxy reported something that is not an address, so the client is unknown.
            return None
        found = address
        if not trusted(address):
            break
    return found


def _hops(forwarded: Iterable[str]) -> list[str]:
    return [hop.strip() for hop in ",".join(forwarded).split(",") if hop.strip()][-HOPS_MAX:]
