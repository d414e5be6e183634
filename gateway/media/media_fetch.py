"""Fetches media from the hosts that the settings list, and from no other host.

    URL --scheme, host, port listed?--> name resolved once --public IP address?--> connected to that very address
     ^------------------------- a redirect is another URL, checked in the same way -------------------------+

An IP address that is not public (private, loopback, link-local, metadata) is connected to only if the settings list
it as an address. A host name cannot lead there, since the owner of its DNS zone could point the name anywhere.
"""

import asyncio
import re
import socket
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from urllib.parse import SplitResult, urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from gateway.domain.errors import TenantQueueFull
from gateway.domain.memory_budget import MemoryLease
from gateway.settings.types import Address, MediaHost, address_of

FETCH_SECONDS_MAX = 10.0
REDIRECTS_MAX = 3
CONNECTIONS_MAX = 32
TENANT_CONNECTIONS_MAX = 8
"""The most simultaneous connections of one tenant, so that slow hosts of one tenant do not block the others."""
TENANT_WAITING_MAX = 64
"""The most media of one tenant that wait for a connection."""
RETRY_SECONDS = 1.0
COPIES = 5
"""How many times a medium is in memory: as received, as base64, in the messages, and on its way to a worker."""
HEADERS = {"accept": "image/*, audio/*, video/*", "accept-encoding": "identity", "user-agent": "radixgate"}

_KIND = re.compile(r"(image|audio|video)/[A-Za-z0-9.+-]{1,60}")
_HOST = re.compile(r"[A-Za-z0-9.:-]{1,253}")
_NAT64 = IPv6Network("64:ff9b::/96")


class MediaFetchFailed(Exception):
    """A medium could not be fetched. The reason, which clients must not see, is in `__cause__`."""

    def __init__(self, url: str) -> None:
        super().__init__("cannot be fetched")
        self.url = url


class MediaFetcher:
    """Fetches media over HTTP from the listed `hosts`; all media of one request have at most `bytes_max` bytes."""

    def __init__(self, hosts: Sequence[MediaHost], bytes_max: int) -> None:
        self._hosts = hosts
        self._bytes_max = bytes_max
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._asked: Counter[str] = Counter()
        """The number of media that each tenant fetches or waits for."""
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=PublicResolver(), use_dns_cache=False, limit=CONNECTIONS_MAX, force_close=True
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=FETCH_SECONDS_MAX),
            headers=HEADERS,
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def fetch(self, urls: Sequence[str], tenant: str, memory: MemoryLease) -> list[str]:
        """Return the media at these URLs as data: URLs, in the same order; `memory` holds them.

        Raises MediaFetchFailed, TenantQueueFull, and what MemoryLease.reserve raises.
        """
        bytes_left = [self._bytes_max]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._fetch_in_turn(url, tenant, bytes_left, memory)) for url in urls
                ]
        except ExceptionGroup as several:
            # Only the first failure is raised.
            raise several.exceptions[0] from several.exceptions[0].__cause__
        return [task.result() for task in tasks]

    async def _fetch_in_turn(self, url: str, tenant: str, bytes_left: list[int], memory: MemoryLease) -> str:
        """Fetch once the tenant has a connection left."""
        turns = self._turns.get(tenant)
        if turns is None:
            turns = self._turns[tenant] = asyncio.Semaphore(TENANT_CONNECTIONS_MAX)
        if self._asked[tenant] >= TENANT_CONNECTIONS_MAX + TENANT_WAITING_MAX:
            raise TenantQueueFull(RETRY_SECONDS)
        self._asked[tenant] += 1
        try:
            async with turns:
                return await self._fetch(url, bytes_left, memory)
        finally:
            self._asked[tenant] -= 1
            if not self._asked[tenant]:
                del self._asked[tenant], self._turns[tenant]

    async def _fetch(self, url: str, bytes_left: list[int], memory: MemoryLease) -> str:
        at = url
        try:
            for _ in range(REDIRECTS_MAX + 1):
                async with self._http.get(self._checked_url(at), allow_redirects=False) as answer:
                    if answer.status in (301, 302, 303, 307, 308) and "location" in answer.headers:
                        at = urljoin(at, answer.headers["location"])
                        continue
                    return await _read_content(answer, bytes_left, memory)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as err:
            raise MediaFetchFailed(url) from err
        raise MediaFetchFailed(url)

    def _checked_url(self, url: str) -> str:
        """Return the URL to request, if it is allowed. Raises ValueError.

        The URL is rebuilt from the checked parts, so that another parser cannot see another host in it.
        """
        parts = urlsplit(url)
        host, port = parts.hostname or "", _port(parts)
        if parts.scheme not in ("http", "https") or parts.username is not None or parts.password is not None:
            raise ValueError("not an http or https URL without credentials")
        if not _HOST.fullmatch(host) or not any(listed.covers(host, port) for listed in self._hosts):
            raise ValueError("not a host that the settings list")
        shown = f"[{host}]" if ":" in host else host
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{shown}:{port}/{parts.path.removeprefix('/')}{query}"


class PublicResolver(AbstractResolver):
    """A DNS resolver that leaves out addresses that are not public.

    A host that is an IP address already is not resolved, so this class never gets it.
    """

    def __init__(self) -> None:
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the public addresses of a host. Raises OSError if there are none."""
        found = await self._inner.resolve(host, port, family)
        public = [each for each in found if is_public(address_of(each["host"]))]
        if not public:
            raise OSError(f"{host} has no public address")
        return public

    async def close(self) -> None:
        """Close the system resolver."""
        await self._inner.close()


def is_public(address: Address | None) -> bool:
    """Return whether an address is public; an IPv6 address that embeds an IPv4 one is as public as that one."""
    if address is None or not address.is_global or address.is_multicast:
        return False
    embedded = _embedded_ipv4(address) if isinstance(address, IPv6Address) else None
    return embedded is None or is_public(embedded)


def _port(parts: SplitResult) -> int:
    """Return the URL's port, or its scheme's default. Raises ValueError."""
    return parts.port if parts.port is not None else 443 if parts.scheme == "https" else 80


def _embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


async def _read_content(answer: aiohttp.ClientResponse, bytes_left: list[int], memory: MemoryLease) -> str:
    """Read a response and return it as a data: URL; `bytes_left` counts the bytes left.

    Raises ValueError, Overloaded, BadRequest.
    """
    kind = _KIND.fullmatch(answer.content_type)
    if (
        answer.status != 200
        or kind is None
        or answer.headers.get("content-encoding", "identity") != "identity"
    ):
        raise ValueError(f"status {answer.status}, {answer.content_type[:100]}")
    data = bytearray()
    async for chunk in answer.content.iter_any():
        bytes_left[0] -= len(chunk)
        if bytes_left[0] < 0:
            raise ValueError("too large")
        memory.reserve(len(chunk) * COPIES)
        data += chunk
    return f"data:{kind[0]};base64,{b64encode(data).decode()}"
