"""Fetches media from the hosts that the settings list, and from nowhere else.

    address --scheme, host, port listed?--> name resolved once --public address?--> connected to that very address
       ^------------------------- a redirect is another address, and asked the same --------------------------+

An address that is not public (private, loopback, link-local, metadata) is connected to only where the settings list
it as an address, not by a name that somebody else may point there.
"""

import asyncio
import re
import socket
from base64 import b64encode
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from urllib.parse import SplitResult, urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from gateway.settings.types import Address, MediaHost, address_of

FETCH_SECONDS_MAX = 10.0
REDIRECTS_MAX = 3
CONNECTIONS_MAX = 32
HEADERS = {"accept": "image/*, audio/*, video/*", "accept-encoding": "identity", "user-agent": "radixgate"}

_KIND = re.compile(r"(image|audio|video)/[A-Za-z0-9.+-]{1,60}")
_HOST = re.compile(r"[A-Za-z0-9.:-]{1,253}")
_NAT64 = IPv6Network("64:ff9b::/96")


class CannotFetch(Exception):
    """For whatever reason: which one is nobody's business who sent the address. It stays in the cause."""

    def __init__(self, address: str) -> None:
        super().__init__("cannot be fetched")
        self.address = address


class MediaFetcher:
    """`hosts`: those that may be asked. `bytes_max`: of all media of one request together."""

    def __init__(self, hosts: Sequence[MediaHost], bytes_max: int) -> None:
        self._hosts = hosts
        self._bytes_max = bytes_max
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=PublicOnly(), use_dns_cache=False, limit=CONNECTIONS_MAX, force_close=True
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=FETCH_SECONDS_MAX),
            headers=HEADERS,
            auto_decompress=False,
        )

    async def close(self) -> None:
        await self._http.close()

    async def fetch(self, addresses: Sequence[str]) -> list[str]:
        """Their contents as data: URLs, in the same order. Raises CannotFetch."""
        room = [self._bytes_max]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._fetch(address, room)) for address in addresses]
        except ExceptionGroup as several:
            # One is enough to say no, and it is said as if it had been the only one.
            raise several.exceptions[0] from several.exceptions[0].__cause__
        return [task.result() for task in tasks]

    async def _fetch(self, address: str, room: list[int]) -> str:
        at = address
        try:
            for _ in range(REDIRECTS_MAX + 1):
                async with self._http.get(self._allowed(at), allow_redirects=False) as answer:
                    if answer.status in (301, 302, 303, 307, 308) and "location" in answer.headers:
                        at = urljoin(at, answer.headers["location"])
                        continue
                    return await _content(answer, room)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as err:
            raise CannotFetch(address) from err
        raise CannotFetch(address)

    def _allowed(self, address: str) -> str:
        """The address as it is asked, if it may be. Raises ValueError.

        It is put together again from what was looked at, so that nobody can read another host in it.
        """
        parts = urlsplit(address)
        host, port = parts.hostname or "", _port(parts)
        if parts.scheme not in ("http", "https") or parts.username is not None or parts.password is not None:
            raise ValueError("not an address of the web")
        if not _HOST.fullmatch(host) or not any(listed.covers(host, port) for listed in self._hosts):
            raise ValueError("not a host that may be asked")
        shown = f"[{host}]" if ":" in host else host
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{shown}:{port}/{parts.path.removeprefix('/')}{query}"


class PublicOnly(AbstractResolver):
    """Resolves names, and leaves out what is not public. Raises OSError where nothing is left.

    What is an address already is not resolved, so it never comes here.
    """

    def __init__(self) -> None:
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        public = [each for each in found if is_public(address_of(each["host"]))]
        if not public:
            raise OSError(f"{host} has no public address")
        return public

    async def close(self) -> None:
        await self._inner.close()


def is_public(address: Address | None) -> bool:
    """Can anybody reach it? IPv6 addresses that carry one of IPv4 are as public as that is."""
    if address is None or not address.is_global or address.is_multicast:
        return False
    inner = _carried(address) if isinstance(address, IPv6Address) else None
    return inner is None or is_public(inner)


def _port(parts: SplitResult) -> int:
    """Raises ValueError."""
    return parts.port if parts.port is not None else 443 if parts.scheme == "https" else 80


def _carried(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


async def _content(answer: aiohttp.ClientResponse, room: list[int]) -> str:
    """As a data: URL. Raises ValueError."""
    kind = _KIND.fullmatch(answer.content_type)
    if (
        answer.status != 200
        or kind is None
        or answer.headers.get("content-encoding", "identity") != "identity"
    ):
        raise ValueError(f"status {answer.status}, {answer.content_type[:100]}")
    data = bytearray()
    async for chunk in answer.content.iter_any():
        room[0] -= len(chunk)
        if room[0] < 0:
            raise ValueError("too large")
        data += chunk
    return f"data:{kind[0]};base64,{b64encode(data).decode()}"
