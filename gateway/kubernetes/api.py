"""The HTTP API of the cluster: objects of one kind, listed and watched.

    list  -- pages of objects, and the resource version that they show
    watch -- from a resource version on, one line of JSON for each change, on an answer that stays open

Everything that the API server sends is bounded in bytes. The token of the service account is read for each request,
because Kubernetes renews it.
"""

import asyncio
import random
import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec

from gateway.kubernetes.objects import ApiResource, NamedObject, ObjectIdentity
from gateway.process.watched_socket import watched_socket

API = "https://kubernetes.default.svc"
"""The name of the API server in every cluster, which its certificate contains."""

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


ANSWER_SECONDS_MAX = 10.0
"""Longest wait for a page of a list, and for the beginning of a watch."""
WATCH_SECONDS = (120, 180)
"""How long a watch stays open, drawn at random for each, so that gateways do not all reconnect at once."""
WATCH_GRACE_SECONDS = 15.0
"""A watch that the server does not end in time is ended here after so many seconds more."""

PAGE = 100
OBJECTS_MAX = 2000
PAGE_BYTES_MAX = 32 * 2**20
LINE_BYTES_MAX = 4 * 2**20
"""An object in a cluster's store has 1.5 MiB at most; an EndpointSlice 1,000 endpoints."""

GONE = 410
REFUSED = (401, 403)

IDLE_SECONDS = 10
"""After so long without a byte a watch is probed; a server that is gone is noticed within half a minute."""

Read = TypeVar("Read", bound=NamedObject)
Decoded = TypeVar("Decoded")


class KubernetesUnavailable(Exception):
    """The API server does not answer, or not as it should; the text has the reason."""


class WatchRefused(KubernetesUnavailable):
    """The service account may not watch."""


class WatchExpired(Exception):
    """The changes since a resource version are not known any more, or not in full: list again."""


class _Page(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] | None = None
    metadata: ObjectIdentity = ObjectIdentity()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class _Bare(msgspec.Struct, frozen=True):
    metadata: ObjectIdentity = ObjectIdentity()


@dataclass(frozen=True, slots=True)
class ObjectChange(Generic[Read]):
    """A change of one object; without a name only the version is new."""

    version: str
    name: str = ""
    found: Read | None = None
    """The object as it is now; None if it was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedObjects(Generic[Read]):
    """Objects of one kind in one namespace."""

    kind: ApiResource[Read]
    namespace: str | None = None
    """None: that of the service account."""
    labels: str = ""
    """A label selector; empty: all objects."""
    name: str = ""
    """The name of a single object; empty: any name."""

    def query(self) -> dict[str, str]:
        """Return the selection as parameters of a request."""
        found = {"labelSelector": self.labels} if self.labels else {}
        return {**found, "fieldSelector": f"metadata.name={self.name}"} if self.name else found


class KubernetesApi:
    """Lists and watches objects of the cluster, and changes single ones.

    Args:
        url: address of the API server.
        account: directory of the service account, with token, ca.crt and namespace.
    """

    def __init__(self, url: str, account: Path) -> None:
        self._url = url
        self._account = account

    async def list(self, selection: SelectedObjects[Read]) -> tuple[dict[str, Read], str]:
        """Return all objects by name, and the resource version that they show. Raises KubernetesUnavailable."""
        objects: dict[str, Read] = {}
        asked = {"limit": str(PAGE), **selection.query()}
        for _ in range(OBJECTS_MAX // PAGE):
            page = await self._page(selection, asked)
            for raw in page.items or ():
                found = _decoded(bytes(raw), selection.kind.read, selection)
                objects[found.metadata.name] = found
            if not page.metadata.following:
                return objects, page.metadata.resource_version
            asked["continue"] = page.metadata.following
        raise KubernetesUnavailable(f"there are more than {OBJECTS_MAX} {selection.kind.kind} objects")

    async def watch(self, selection: SelectedObjects[Read], version: str) -> "ObjectWatch[Read]":
        """Open a watch of all changes after a version. Raises KubernetesUnavailable, WatchExpired."""
        seconds = random.randint(*WATCH_SECONDS)
        asked = {
            **selection.query(),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(self._session(seconds + WATCH_GRACE_SECONDS))
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    answer = await http.get(**self._request(selection), params=asked)
            except (aiohttp.ClientError, TimeoutError) as err:
                raise _no_answer(err) from err
            if answer.status == GONE:
                raise WatchExpired("the API server answers 410")
            if answer.status in REFUSED:
                raise WatchRefused(f"the API server answers {answer.status} to a watch")
            if answer.status != 200:
                raise KubernetesUnavailable(f"the API server answers {answer.status} to a watch")
            return ObjectWatch(stack.pop_all(), answer, selection)

    async def change(
        self, selection: SelectedObjects[Any], change: Mapping[str, Any], *, create: bool = False
    ) -> int:
        """Change the named object by a merge patch, or create one, and return the answer's status.

        Raises KubernetesUnavailable.
        """
        kind = "application/json" if create else "application/merge-patch+json"
        request = self._request(selection, "" if create else selection.name)
        request["headers"] |= {"Content-Type": kind}
        async with self._session(ANSWER_SECONDS_MAX) as http:
            try:
                method = http.post if create else http.patch
                async with method(**request, data=msgspec.json.encode(change)) as answer:
                    return answer.status
            except (aiohttp.ClientError, TimeoutError) as err:
                raise _no_answer(err) from err

    async def _page(self, selection: SelectedObjects[Any], asked: dict[str, str]) -> _Page:
        try:
            async with (
                self._session(ANSWER_SECONDS_MAX) as http,
                http.get(**self._request(selection), params=asked) as answer,
            ):
                if answer.status != 200:
                    hint = _hint(answer.status, selection)
                    raise KubernetesUnavailable(f"the API server answers {answer.status}{hint}")
                text = bytearray()
                async for piece in answer.content.iter_any():
                    text += piece
                    if len(text) > PAGE_BYTES_MAX:
                        raise KubernetesUnavailable(
                            f"a page of the list is larger than {PAGE_BYTES_MAX} bytes"
                        )
        except (aiohttp.ClientError, TimeoutError) as err:
            raise _no_answer(err) from err
        return _decoded(bytes(text), _Page, selection)

    def _session(self, seconds_max: float) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=seconds_max),
            connector=aiohttp.TCPConnector(socket_factory=partial(watched_socket, idle_seconds=IDLE_SECONDS)),
        )

    def _request(self, selection: SelectedObjects[Any], name: str = "") -> dict[str, Any]:
        """Return the arguments of a request. Raises KubernetesUnavailable."""
        try:
            token = (self._account / "token").read_text(encoding="utf-8").strip()
            namespace = selection.namespace or self.namespace()
            authority = self._account / "ca.crt"
            context = ssl.create_default_context(cafile=str(authority)) if authority.exists() else True
        except (OSError, ValueError) as err:
            raise KubernetesUnavailable(f"the service account cannot be read: {err}") from err
        kind = selection.kind
        return {
            "url": f"{self._url}/{kind.version}/namespaces/{namespace}/{kind.plural}{f'/{name}' if name else ''}",
            "headers": {"Authorization": f"Bearer {token}"},
            "ssl": context,
            "allow_redirects": False,
        }

    def namespace(self) -> str:
        """Return the namespace of the service account. Raises OSError, ValueError."""
        return (self._account / "namespace").read_text(encoding="utf-8").strip()


class ObjectWatch(Generic[Read]):
    """An open watch. Call `close` at its end."""

    def __init__(
        self, connection: AsyncExitStack, answer: aiohttp.ClientResponse, selection: SelectedObjects[Read]
    ) -> None:
        self._connection = connection
        self._answer = answer
        self._selection = selection
        self._text = bytearray()

    async def changes(self) -> list[ObjectChange[Read]]:
        """Wait for changes, and return all that have arrived; none if the watch has ended.

        A line without its end, of a watch that broke off, counts as not sent. Raises WatchExpired,
        KubernetesUnavailable.
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
                raise KubernetesUnavailable(f"a line of the watch is longer than {LINE_BYTES_MAX} bytes")
            if end:
                lines = bytes(self._text[:end]).split(b"\n")
                del self._text[:end]
                return [_change(line, self._selection) for line in lines if line.strip()]

    async def close(self) -> None:
        """Close the connection."""
        self._answer.close()
        await self._connection.aclose()


def _change(line: bytes, selection: SelectedObjects[Read]) -> ObjectChange[Read]:
    event = _decoded(line, _Event, selection)
    if event.type == "ERROR":
        status = _decoded(bytes(event.object), _Status, selection)
        raise WatchExpired(f"the watch was ended with {status.code}: {status.message[:200]}")
    metadata = _decoded(bytes(event.object), _Bare, selection).metadata
    version, name = metadata.resource_version, metadata.name
    if not version or (not name and event.type != "BOOKMARK"):
        raise KubernetesUnavailable("the API server sends an object without name or version")
    match event.type:
        case "ADDED" | "MODIFIED":
            return ObjectChange(version, name, _decoded(bytes(event.object), selection.kind.read, selection))
        case "DELETED":
            return ObjectChange(version, name)
        case "BOOKMARK":
            return ObjectChange(version)
        case _:
            raise KubernetesUnavailable(f"the watch has an event of an unknown type: {event.type[:40]!r}")


def _decoded(text: bytes, read: type[Decoded], selection: SelectedObjects[Any]) -> Decoded:
    try:
        return msgspec.json.decode(text, type=read)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as err:
        kind = selection.kind.kind
        raise KubernetesUnavailable(
            f"the API server does not answer with the JSON of {kind} objects"
        ) from err


def _no_answer(err: Exception) -> KubernetesUnavailable:
    return KubernetesUnavailable(f"the API server does not answer: {type(err).__name__}")


def _hint(status: int, selection: SelectedObjects[Any]) -> str:
    if status in REFUSED:
        return f": the service account may not list {selection.kind.plural}"
    return f": the cluster has no {selection.kind.plural}" if status == 404 else ""
