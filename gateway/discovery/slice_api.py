"""The EndpointSlices of one Kubernetes Service, listed and watched over the HTTP API of the cluster.

    list  -- pages of slices, and the resource version that they show
    watch -- from a resource version on, one line of JSON for each change, on an answer that stays open

Everything that the API server sends is bounded in bytes. The token of the service account is read for each answer,
because Kubernetes renews it.
"""

import asyncio
import random
import socket
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec

from gateway.discovery.source import SourceUnavailable

ANSWER_SECONDS_MAX = 10.0
"""Longest wait for a page of a list, and for the beginning of a watch."""
WATCH_SECONDS = (120, 180)
"""How long a watch stays open, drawn anew for each, so that gateways do not come back all at once."""
WATCH_GRACE_SECONDS = 15.0
"""A watch that the server does not end in time is ended here after so many seconds more."""

PAGE = 100
SLICES_MAX = 2000
PAGE_BYTES_MAX = 32 * 2**20
LINE_BYTES_MAX = 4 * 2**20
"""An object in a cluster's store has 1.5 MiB at most, and 1,000 endpoints."""

GONE = 410
REFUSED = (401, 403)

KEEPALIVE_OPTIONS = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""A quiet watch whose server is gone is noticed within half a minute."""

Read = TypeVar("Read")


class WatchRefused(SourceUnavailable):
    """The service account may not watch."""


class WatchExpired(Exception):
    """The changes since a resource version are not known any more, or not in full: list again."""


class Reference(msgspec.Struct, frozen=True):
    """The object behind an endpoint."""

    name: str | None = None


class Conditions(msgspec.Struct, frozen=True):
    """The state of an endpoint; by the API, an unknown readiness (null) means ready."""

    ready: bool | None = None
    terminating: bool | None = None


class SliceEndpoint(msgspec.Struct, frozen=True, rename="camel"):
    """One endpoint of a slice: a pod."""

    addresses: list[str] | None = None
    conditions: Conditions | None = None
    target_ref: Reference | None = None


class EndpointPort(msgspec.Struct, frozen=True):
    """A port of all endpoints of a slice."""

    name: str | None = None
    port: int | None = None


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Name and version of an object, or of a list."""

    name: str = ""
    resource_version: str = ""
    following: str = msgspec.field(default="", name="continue")


class EndpointSlice(msgspec.Struct, frozen=True):
    """Some of the endpoints of a Service."""

    metadata: _Metadata = _Metadata()
    ports: list[EndpointPort] | None = None
    endpoints: list[SliceEndpoint] | None = None


class _Page(msgspec.Struct, frozen=True):
    items: list[EndpointSlice] | None = None
    metadata: _Metadata = _Metadata()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class SliceChange(msgspec.Struct, frozen=True):
    """A change of one slice; without a slice only the version is new."""

    version: str
    name: str = ""
    slice: EndpointSlice | None = None
    """The slice as it is now; None if it was deleted."""


class SliceApi:
    """Lists and watches the EndpointSlices of one Service.

    Args:
        url: address of the API server.
        account: directory of the service account, with token, ca.crt and namespace.
        service: name of the Service.
        namespace: its namespace; None: that of the service account.
    """

    def __init__(self, url: str, account: Path, service: str, namespace: str | None) -> None:
        self._url = url
        self._account = account
        self._selector = f"kubernetes.io/service-name={service}"
        self._namespace = namespace

    async def list(self) -> tuple[dict[str, EndpointSlice], str]:
        """Return all slices by name, and the resource version that they show. Raises SourceUnavailable."""
        slices: dict[str, EndpointSlice] = {}
        asked = {"limit": str(PAGE)}
        for _ in range(SLICES_MAX // PAGE):
            page = await self._page(asked)
            slices |= {one.metadata.name: one for one in page.items or ()}
            if not page.metadata.following:
                return slices, page.metadata.resource_version
            asked["continue"] = page.metadata.following
        raise SourceUnavailable(f"the service has more than {SLICES_MAX} EndpointSlices")

    async def watch(self, version: str) -> "SliceWatch":
        """Open a watch of all changes after a version. Raises SourceUnavailable, WatchExpired."""
        seconds = random.randint(*WATCH_SECONDS)
        asked = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(self._session(seconds + WATCH_GRACE_SECONDS))
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    answer = await http.get(**self._request(asked))
            except (aiohttp.ClientError, TimeoutError) as err:
                raise _no_answer(err) from err
            if answer.status == GONE:
                raise WatchExpired("the API server answers 410")
            if answer.status in REFUSED:
                raise WatchRefused(f"the API server answers {answer.status} to a watch")
            if answer.status != 200:
                raise SourceUnavailable(f"the API server answers {answer.status} to a watch")
            return SliceWatch(stack.pop_all(), answer)

    async def _page(self, asked: dict[str, str]) -> _Page:
        try:
            async with (
                self._session(ANSWER_SECONDS_MAX) as http,
                http.get(**self._request(asked)) as answer,
            ):
                if answer.status != 200:
                    raise SourceUnavailable(f"the API server answers {answer.status}{_hint(answer.status)}")
                text = bytearray()
                async for piece in answer.content.iter_any():
                    text += piece
                    if len(text) > PAGE_BYTES_MAX:
                        raise SourceUnavailable(f"a page of the list is larger than {PAGE_BYTES_MAX} bytes")
        except (aiohttp.ClientError, TimeoutError) as err:
            raise _no_answer(err) from err
        return _decoded(bytes(text), _Page)

    def _session(self, seconds_max: float) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=seconds_max),
            connector=aiohttp.TCPConnector(socket_factory=_watched_socket),
        )

    def _request(self, asked: dict[str, str]) -> dict[str, Any]:
        """Return the arguments of a GET. Raises SourceUnavailable."""
        try:
            token = (self._account / "token").read_text(encoding="utf-8").strip()
            namespace = self._namespace or (self._account / "namespace").read_text(encoding="utf-8").strip()
            authority = self._account / "ca.crt"
            context = ssl.create_default_context(cafile=str(authority)) if authority.exists() else True
        except (OSError, ValueError) as err:
            raise SourceUnavailable(f"the service account cannot be read: {err}") from err
        return {
            "url": f"{self._url}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
            "params": {"labelSelector": self._selector, **asked},
            "headers": {"Authorization": f"Bearer {token}"},
            "ssl": context,
            "allow_redirects": False,
        }


class SliceWatch:
    """An open watch. Call `close` at its end."""

    def __init__(self, connection: AsyncExitStack, answer: aiohttp.ClientResponse) -> None:
        self._connection = connection
        self._answer = answer
        self._text = bytearray()

    async def changes(self) -> list[SliceChange]:
        """Wait for changes, and return all that have arrived; none if the watch has ended.

        A line without its end, of a watch that broke off, counts as not sent. Raises WatchExpired,
        SourceUnavailable.
        """
        while True:
            searched = len(self._text)
            try:
                piece = await self._answer.content.readany()
            except (aiohttp.ClientError, TimeoutError):
                return []
            if not piece:
                return []
            self._text += piece
            end = self._text.rfind(b"\n", searched) + 1
            if len(self._text) - end > LINE_BYTES_MAX:
                raise SourceUnavailable(f"a line of the watch is longer than {LINE_BYTES_MAX} bytes")
            if end:
                lines = bytes(self._text[:end]).split(b"\n")
                del self._text[:end]
                return [_change(line) for line in lines if line.strip()]

    async def close(self) -> None:
        """Hang up."""
        self._answer.close()
        await self._connection.aclose()


def _change(line: bytes) -> SliceChange:
    event = _decoded(line, _Event)
    if event.type == "ERROR":
        status = _decoded(bytes(event.object), _Status)
        raise WatchExpired(f"the watch was ended with {status.code}: {status.message[:200]}")
    changed = _decoded(bytes(event.object), EndpointSlice)
    version, name = changed.metadata.resource_version, changed.metadata.name
    if not version or (not name and event.type != "BOOKMARK"):
        raise SourceUnavailable("the API server sends an object without name or version")
    match event.type:
        case "ADDED" | "MODIFIED":
            return SliceChange(version, name, changed)
        case "DELETED":
            return SliceChange(version, name)
        case "BOOKMARK":
            return SliceChange(version)
        case _:
            raise SourceUnavailable(f"the watch has an event of an unknown type: {event.type[:40]!r}")


def _decoded(text: bytes, kind: type[Read]) -> Read:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as err:
        raise SourceUnavailable("the API server does not answer with the JSON of EndpointSlices") from err


def _watched_socket(address: Any) -> socket.socket:
    """Return a socket that notices a silent end of its peer."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE_OPTIONS:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def _no_answer(err: Exception) -> SourceUnavailable:
    return SourceUnavailable(f"the API server does not answer: {type(err).__name__}")


def _hint(status: int) -> str:
    return ": the service account may not list endpointslices" if status in REFUSED else ""
