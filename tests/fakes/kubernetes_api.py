"""An API server of Kubernetes with the EndpointSlices of one Service, which lists and really streams watches."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


def endpoint(address: str, pod: str, **conditions: bool | None) -> dict[str, Any]:
    """Return an endpoint as it stands in a slice."""
    return {"addresses": [address], "targetRef": {"name": pod}, "conditions": conditions}


class KubernetesApi:
    """The API server: `async with KubernetesApi(directory) as api`, with the service account in the directory.

    Each change has a version. A watch from a version gets all later changes, unless they have been compacted.
    """

    def __init__(self, account: Path) -> None:
        self.account = account
        self.url = ""
        self.tokens = {"t0ken"}
        self.page = 500
        self.may_watch = True
        self.answers: list[int] = []  # statuses with which the next requests are answered
        self.lists: list[Mapping[str, str]] = []  # the query of each request for a list
        self.watches: list[Mapping[str, str]] = []  # the query of each watch that was opened
        self.namespaces: set[str] = set()
        self._version = 1
        self._oldest = 1
        self._slices: dict[str, dict[str, Any]] = {}
        self._log: list[tuple[int, bytes]] = []
        self._open: dict[asyncio.Task[Any], asyncio.Queue[bytes | None]] = {}
        self._runner: web.AppRunner | None = None
        self._port = 0
        (account / "namespace").write_text("inference")
        self.give_token("t0ken")

    async def __aenter__(self) -> "KubernetesApi":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the same port each time."""
        app = web.Application()
        app.router.add_get(PATH, self._get)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Stop listening, and cut all watches."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def open_watches(self) -> int:
        """How many watches are open."""
        return len(self._open)

    def give_token(self, token: str) -> None:
        """Write a token into the service account."""
        (self.account / "token").write_text(token + "\n")

    def put(
        self,
        name: str,
        endpoints: Sequence[Mapping[str, Any]],
        ports: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Add or change a slice."""
        kind = "MODIFIED" if name in self._slices else "ADDED"
        self._slices[name] = {
            "metadata": {"name": name},
            "ports": ports if ports is not None else [{"name": "http", "port": 8000}],
            "endpoints": list(endpoints),
        }
        self._changed(kind, name, self._slices[name])

    def delete(self, name: str) -> None:
        """Delete a slice."""
        self._changed("DELETED", name, self._slices.pop(name))

    def touch_others(self, count: int = 1) -> None:
        """Change objects that are not of this Service: versions grow, and watches get nothing."""
        self._version += count

    def bookmark(self) -> None:
        """Tell all watches the newest version."""
        self._send({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self._version)}}})

    def compact(self) -> None:
        """Forget all changes so far: watches from an older version are answered with 410."""
        self._oldest = self._version
        self._log.clear()

    def send_raw(self, text: bytes) -> None:
        """Send bytes on all watches."""
        for queue in self._open.values():
            queue.put_nowait(text)

    def end_watches(self) -> None:
        """End all watches, as the server does when their time is up."""
        for queue in self._open.values():
            queue.put_nowait(None)

    def cut_watches(self) -> None:
        """Cut the connections of all watches."""
        for task in list(self._open):
            task.cancel()

    def _changed(self, kind: str, name: str, content: dict[str, Any]) -> None:
        self._version += 1
        content = {**content, "metadata": {"name": name, "resourceVersion": str(self._version)}}
        line = self._send({"type": kind, "object": content})
        self._log.append((self._version, line))

    def _send(self, event: dict[str, Any]) -> bytes:
        line = json.dumps(event).encode() + b"\n"
        self.send_raw(line)
        return line

    async def _get(self, http: web.Request) -> web.StreamResponse:
        query = dict(http.query)
        is_watch = query.get("watch") == "1"
        (self.watches if is_watch else self.lists).append(query)
        self.namespaces.add(http.match_info["namespace"])
        if self.answers:
            return web.json_response({}, status=self.answers.pop(0))
        if http.headers["Authorization"].removeprefix("Bearer ") not in self.tokens:
            return web.json_response({}, status=401)
        if is_watch and not self.may_watch:
            return web.json_response({}, status=403)
        return await self._watch(http, int(query["resourceVersion"])) if is_watch else self._list(query)

    def _list(self, query: Mapping[str, str]) -> web.Response:
        at, most = int(query.get("continue", 0)), min(self.page, int(query["limit"]))
        names = sorted(self._slices)
        metadata = {"resourceVersion": str(self._version)}
        if at + most < len(names):
            metadata["continue"] = str(at + most)
        items = [self._slices[name] for name in names[at : at + most]]
        return web.json_response({"items": items, "metadata": metadata})

    async def _watch(self, http: web.Request, version: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(http)
        if version < self._oldest:
            gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        task, queue = asyncio.current_task(), asyncio.Queue[bytes | None]()
        assert task is not None
        for changed, line in self._log:
            if changed > version:
                queue.put_nowait(line)
        self._open[task] = queue
        try:
            while (text := await queue.get()) is not None:
                await response.write(text)
        finally:
            del self._open[task]
        return response
