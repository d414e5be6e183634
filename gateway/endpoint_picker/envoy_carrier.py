"""Envoy as the carrier of a request: it gets the worker's address and the request, and returns the answer.

The bytes of the request are those that the gateway would send to the worker over a connection of its own.
"""

import asyncio
from collections.abc import Callable
from ipaddress import ip_address

from multidict import CIMultiDict

from gateway.endpoint_picker.buffered_body import BufferedBody
from gateway.endpoint_picker.envoy_request import EnvoyRequest
from workers.adapters.connection import PLAIN, ConnectionBroken, ConnectionTimedOut
from workers.carrier import RequestTransport
from workers.system_error import reason_of

CONNECTION_HEADERS = frozenset({"host", "connection", "content-length"})
"""Headers that Envoy itself sets on its connection to the worker."""

ENVOY_FAILURES = (b"upstream connect error", b"no healthy upstream", b"upstream request timeout")
"""Prefixes of the answers that Envoy itself gives if the worker gave none."""

FAILURE_STATUSES = frozenset({503, 504})


class EnvoyCarrier:
    """The Carrier of one request: Envoy takes it to the first worker that is tried over plain HTTP.

    Further attempts are the gateway's own, and so are those at workers and providers with https:// addresses: Envoy
    connects to the workers' addresses without TLS.
    """

    def __init__(self, envoy: EnvoyRequest) -> None:
        self.addresses = envoy.subset
        """The addresses that Envoy allows; None: any."""
        self._envoy = envoy
        self._used = False

    def transport_to(self, host: str, port: int) -> RequestTransport | None:
        """Return the transport through Envoy, once."""
        if self._used:
            return None
        self._used = True
        return EnvoyTransport(self._envoy, host, port)


class EnvoyTransport:
    """The RequestTransport of one request through Envoy."""

    def __init__(self, envoy: EnvoyRequest, host: str, port: int) -> None:
        self._envoy = envoy
        self._host = host
        self._port = port

    async def send(
        self,
        request: tuple[bytes | memoryview, ...],
        first_byte_seconds_max: float,
        on_sent: Callable[[], None] = lambda: None,
        on_wait: Callable[[], None] = lambda: None,
    ) -> tuple["EnvoyAnswerReader", bytes]:
        """Send the request; see RequestTransport. Raises ConnectionBroken, ConnectionTimedOut."""
        envoy = self._envoy
        on_wait()
        endpoint = await endpoint_of(self._host, self._port)
        head, _, start = bytes(request[0]).partition(b"\r\n\r\n")
        on_sent()
        await envoy.pick(endpoint, _headers(head), (start, *map(bytes, request[1:])))
        try:
            async with asyncio.timeout(first_byte_seconds_max):
                answer = EnvoyAnswerReader(await asyncio.shield(envoy.response_headers), envoy.response_body)
                first = await answer.read()
        except TimeoutError as err:
            raise ConnectionTimedOut("no first byte in time") from err
        if answer.status in FAILURE_STATUSES and first.startswith(ENVOY_FAILURES):
            raise ConnectionBroken(first[:200].decode("latin-1"))
        return answer, first


class EnvoyAnswerReader:
    """A worker's answer that arrives through Envoy; an AnswerReader."""

    def __init__(self, headers: CIMultiDict[str], body: BufferedBody) -> None:
        self.status = int(headers.get(":status", "0"))
        kind = headers.get("content-type", "")
        plain = kind.partition(";")[0].strip().lower()
        self.content_type = plain if plain.encode() in PLAIN else kind
        self.retry_after = headers.get("retry-after", "")
        self.date = headers.get("date", "")
        self._body = body

    @property
    def complete(self) -> bool:
        """Whether the answer has arrived completely."""
        return self._body.complete

    async def read(self) -> bytes:
        """Return the next piece of the body; empty at its end. Raises ConnectionBroken."""
        return await self._body.readany()

    def fail(self, error: Exception) -> None:
        """End the answer with an error."""
        self._body.fail(error)

    def release(self) -> None:
        """Do nothing: Envoy closes its connection to the worker when the stream with the gateway ends."""


async def endpoint_of(host: str, port: int) -> str:
    """Return the address as `ip:port`, of a host name its first address. Raises ConnectionBroken."""
    try:
        address = ip_address(host)
    except ValueError:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port)
        except OSError as err:
            raise ConnectionBroken(f"cannot connect: {reason_of(err)}") from err
        address = ip_address(found[0][4][0])
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _headers(head: bytes) -> dict[str, str]:
    """Return the headers of a request to a worker, with its method and path as Envoy names them."""
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {":path": first.split(" ")[1]}
    for line in lines:
        name, _, value = line.partition(": ")
        if name.lower() not in CONNECTION_HEADERS:
            headers[name.lower()] = value
    return headers
