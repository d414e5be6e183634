"""Relays requests to the cell of their tenant; bytes pass in both directions as they arrive.

    client --> gateway of any cell: authenticates --> gateway of the tenant's cell: authenticates, serves, records

The pipeline decides whether a request moves (`serve` in gateway/pipeline.py), by the tenant's owner among the
living cells. Nothing is reserved on the way. If a gateway of that cell cannot be reached, or breaks off before any
of the body was sent, the next one is tried, and in the end the request is served here. A request without a body
(GET, DELETE) may therefore be sent twice. A client that disconnects ends the call to the other cell.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import partial

import aiohttp
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError
from multidict import CIMultiDict
from yarl import URL

from gateway.cells.hop import HEADER, HopInvalid, HopSignature
from gateway.cells.living_cells import GATEWAYS_MAX, LivingCells
from gateway.domain.errors import BadRequest, CellUnavailable
from gateway.domain.tenant import Tenant
from gateway.process.watched_socket import watched_socket
from gateway.settings.types import Address, address_of
from gateway.web.bodies.expectation import ask_for_body
from gateway.web.client_address import FindAddress
from gateway.web.request_identity import presented_key

log = logging.getLogger(__name__)

CELL = "x-radixgate-cell"
"""The response header that names the tenant's cell."""

CONNECTIONS_MAX = 4096
CONNECT_SECONDS_MAX = 1.0
KEPT_SECONDS = 30.0
"""How long an unused connection is kept open; shorter than at the other end."""

REST_SECONDS = 1.0
"""How long a gateway is not tried again after it could not be reached."""

FETCHED_BYTES_MAX = 16 * 1024**2
FETCH_SECONDS_MAX = 10.0
"""Bounds of an answer that is read whole before it is passed on."""

TRIES_MAX = 3
"""The most gateways of a cell that are tried before the request is served here."""

IDLE_SECONDS = 5
"""A connection is probed after this long without a byte; a dead machine is noticed after 20 seconds."""

HOP_BY_HOP = frozenset(
    [
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
        *("transfer-encoding", "upgrade", "proxy-connection"),
    ]
)
OF_REQUEST = HOP_BY_HOP | {"host", "expect", HEADER}
"""Headers of a request that are not passed on."""


class CellRelay:
    """Sends requests of tenants of other cells to these cells."""

    def __init__(self, living: LivingCells, signature: HopSignature) -> None:
        self.relayed: Counter[str] = Counter()
        """The number of requests that another cell has answered, by its name."""
        self.unreached: Counter[str] = Counter()
        """The number of requests served here because no gateway of their cell could be reached, by its name."""
        self._rests_until: dict[str, float] = {}
        """When gateways that were not reached are tried again, by URL."""
        self._living = living
        self._signature = signature
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=CONNECTIONS_MAX,
                keepalive_timeout=KEPT_SECONDS,
                socket_factory=partial(watched_socket, idle_seconds=IDLE_SECONDS),
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS_MAX),
            auto_decompress=False,
            skip_auto_headers=("accept", "accept-encoding", "user-agent", "content-type"),
        )

    async def close(self) -> None:
        """End all calls, and close all connections."""
        await self._http.close()

    @property
    def own_cell(self) -> str:
        """The cell of this gateway."""
        return self._living.cell

    def hop_address(self, http: web.Request) -> Address | None:
        """Return the client's address from a request that another cell relays. Raises BadRequest."""
        headers = http.headers
        try:
            address = self._signature.address(headers[HEADER], self._living.cell, presented_key(headers))
        except HopInvalid as err:
            raise BadRequest(
                f"Only gateways send the header {HEADER}, with their deployment's secret."
            ) from err
        return address_of(address) if address is not None else None

    def address_finder(self, find_address: FindAddress) -> FindAddress:
        """Return a function that finds clients' addresses, including those of relayed requests."""

        def find(http: web.Request) -> Address | None:
            return self.hop_address(http) if HEADER in http.headers else find_address(http)

        return find

    async def fetch(
        self, http: web.Request, tenant: Tenant, find_address: FindAddress
    ) -> web.Response | None:
        """Return the whole answer of the tenant's cell to a small request; None if it has to be answered here.

        Raises CellUnavailable, BadRequest.
        """
        cell = self._living.owner_of(tenant.organisation)
        if cell == self.own_cell or HEADER in http.headers:
            return None
        answer = await self.open(http, cell, find_address)
        if answer is None:
            return None
        async with answer:
            body = bytearray()
            try:
                async with asyncio.timeout(FETCH_SECONDS_MAX):
                    async for chunk in answer.content.iter_any():
                        body += chunk
                        if len(body) > FETCHED_BYTES_MAX:
                            raise CellUnavailable
            except (aiohttp.ClientError, TimeoutError, OSError) as err:
                raise CellUnavailable from err
        headers = answer_headers(answer.headers, cell)
        headers.popall("content-length", None)
        return web.Response(status=answer.status, headers=headers, body=bytes(body))

    async def open(
        self, http: web.Request, cell: str, find_address: FindAddress
    ) -> aiohttp.ClientResponse | None:
        """Send a request to its cell and return the answer's head; None if no gateway of the cell is reached.

        Raises CellUnavailable if the connection to the cell breaks before that, BadRequest if the client's does.
        """
        now = time.monotonic()
        urls = [url for url in self._living.cells.get(cell, ()) if self._rests_until.get(url, now) <= now]
        headers = _headers_without(http.headers, OF_REQUEST)
        address = find_address(http)
        headers[HEADER] = self._signature.header(
            cell, str(address) if address is not None else None, presented_key(http.headers)
        )
        random.shuffle(urls)
        for url in urls[:TRIES_MAX]:
            body = _RelayedBody(http)
            try:
                answer = await self._http.request(
                    http.method,
                    URL(url + http.rel_url.raw_path_qs, encoded=True),
                    headers=headers,
                    data=body.chunks() if http.can_read_body else None,
                    allow_redirects=False,
                )
                self.relayed[cell] += 1
                return answer
            except (aiohttp.ClientError, TimeoutError, OSError) as err:
                if body.failure is not None:
                    raise BadRequest("The body did not arrive as its headers said.") from body.failure
                if body.begun:
                    log.warning("cell %s broke off a request: %s", cell, type(err).__name__)
                    raise CellUnavailable from err
                self._rest(url)
                log.warning("a gateway of cell %s cannot be reached: %s", cell, err)
        self.unreached[cell] += 1
        return None

    def _rest(self, url: str) -> None:
        """Send nothing to this URL for a while, so that not every request waits for it."""
        if len(self._rests_until) >= GATEWAYS_MAX:
            self._rests_until.clear()
        self._rests_until[url] = time.monotonic() + REST_SECONDS


class _RelayedBody:
    """The body of a request, as it arrives."""

    def __init__(self, http: web.Request) -> None:
        self._http = http
        self.begun = False
        """Whether any of it may have been sent."""
        self.failure: Exception | None = None
        """Why the client's body did not arrive."""

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body; a client that waits for `100 Continue` gets it."""
        self.begun = True
        await ask_for_body(self._http)
        try:
            while chunk := await self._http.content.readany():
                yield chunk
        except RequestPayloadError as err:
            self.failure = err
            raise


async def relayed_chunks(answer: aiohttp.ClientResponse, http: web.Request) -> AsyncIterator[bytes]:
    """Yield an answer's bytes as they arrive.

    Raises ConnectionResetError if they end too soon; the client's connection is then cut, so that it notices.
    """
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, OSError) as err:
        log.warning("a relayed answer broke off: %s", type(err).__name__)
        if http.transport is not None:
            http.transport.abort()
        raise ConnectionResetError from err


def answer_headers(headers: Mapping[str, str], cell: str) -> "CIMultiDict[str]":
    """Return the headers of a relayed answer, with the name of its cell."""
    passed = _headers_without(headers, HOP_BY_HOP)
    passed[CELL] = cell
    return passed


def _headers_without(headers: Mapping[str, str], left_out: frozenset[str]) -> "CIMultiDict[str]":
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    return CIMultiDict(
        [(name, value) for name, value in headers.items() if name.lower() not in left_out | named]
    )
