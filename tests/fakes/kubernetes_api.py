"""An API server of Kubernetes with a few kinds of objects, which lists and really streams watches."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

GROUPS = ("api/v1", "apis/discovery.k8s.io/v1", "apis/inference.networking.k8s.io/v1")
Content = dict[str, Any]


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
        self.asked: set[str] = set()  # the plurals of all kinds that were asked for
        self._version = 1
        self._oldest = 1
        self.objects: dict[str, dict[str, Content]] = {}  # by the plural of their kind, and by name
        self.changes: list[tuple[str, str, Content]] = []  # of clients: plural, name, change
        self._log: list[tuple[int, str, Content]] = []
        self._open: dict[asyncio.Task[Any], tuple[_Selection, asyncio.Queue[bytes | None]]] = {}
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
        for group in GROUPS:
            path = f"/{group}/namespaces/{{namespace}}/{{plural}}"
            app.router.add_get(path, self._get)
            app.router.add_post(path, self._post)
            app.router.add_patch(f"{path}/{{name}}", self._patch)
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
        content = {
            "metadata": {"labels": {"kubernetes.io/service-name": "vllm"}},
            "ports": ports if ports is not None else [{"name": "http", "port": 8000}],
            "endpoints": list(endpoints),
        }
        self.put_object("endpointslices", name, content)

    def put_pod(
        self,
        name: str,
        address: str,
        *,
        ready: bool = True,
        ports: Sequence[Mapping[str, Any]] = (),
        ending: bool = False,
        **labels: str,
    ) -> None:
        """Add or change a pod."""
        metadata: Content = {"labels": labels}
        if ending:
            metadata["deletionTimestamp"] = "2026-11-23T12:00:00Z"
        conditions = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": str(ready)}]
        content = {
            "metadata": metadata,
            "spec": {"containers": [{"name": "engine", "ports": list(ports)}]},
            "status": {"podIP": address, "conditions": conditions},
        }
        self.put_object("pods", name, content)

    def put_object(self, plural: str, name: str, content: Content) -> None:
        """Add or change an object."""
        there = self.objects.setdefault(plural, {})
        kind = "MODIFIED" if name in there else "ADDED"
        there[name] = {**content, "metadata": {**content.get("metadata", {}), "name": name}}
        self._changed(kind, plural, there[name])

    def delete(self, name: str, plural: str = "endpointslices") -> None:
        """Delete an object."""
        self._changed("DELETED", plural, self.objects[plural].pop(name))

    def touch_others(self, count: int = 1) -> None:
        """Change objects that are not of this Service: versions grow, and watches get nothing."""
        self._version += count

    def bookmark(self) -> None:
        """Tell all watches the newest version."""
        metadata = {"resourceVersion": str(self._version)}
        self.send_raw(json.dumps({"type": "BOOKMARK", "object": {"metadata": metadata}}).encode() + b"\n")

    def compact(self) -> None:
        """Forget all changes so far: watches from an older version are answered with 410."""
        self._oldest = self._version
        self._log.clear()

    def send_raw(self, text: bytes) -> None:
        """Send bytes on all watches."""
        for _, queue in self._open.values():
            queue.put_nowait(text)

    def end_watches(self) -> None:
        """End all watches, as the server does when their time is up."""
        for _, queue in self._open.values():
            queue.put_nowait(None)

    def cut_watches(self) -> None:
        """Cut the connections of all watches."""
        for task in list(self._open):
            task.cancel()

    def _changed(self, kind: str, plural: str, content: Content) -> None:
        self._version += 1
        content["metadata"]["resourceVersion"] = str(self._version)
        event = {"type": kind, "object": content}
        self._log.append((self._version, plural, event))
        for selection, queue in self._open.values():
            selection.send(plural, event, queue)

    async def _get(self, http: web.Request) -> web.StreamResponse:
        query = dict(http.query)
        is_watch = query.get("watch") == "1"
        (self.watches if is_watch else self.lists).append(query)
        self.namespaces.add(http.match_info["namespace"])
        self.asked.add(http.match_info["plural"])
        if self.answers:
            return web.json_response({}, status=self.answers.pop(0))
        if http.headers["Authorization"].removeprefix("Bearer ") not in self.tokens:
            return web.json_response({}, status=401)
        if is_watch and not self.may_watch:
            return web.json_response({}, status=403)
        selection = _Selection(http.match_info["plural"], query)
        if is_watch:
            return await self._watch(http, selection, int(query["resourceVersion"]))
        return self._list(selection, query)

    async def _post(self, http: web.Request) -> web.Response:
        content = await http.json()
        self.changes.append((http.match_info["plural"], content["metadata"]["name"], content))
        if self.answers:
            return web.json_response({}, status=self.answers.pop(0))
        if content["metadata"]["name"] in self.objects.get(http.match_info["plural"], {}):
            return web.json_response({}, status=409)
        self.put_object(http.match_info["plural"], content["metadata"]["name"], content)
        return web.json_response({}, status=201)

    async def _patch(self, http: web.Request) -> web.Response:
        plural, name, change = http.match_info["plural"], http.match_info["name"], await http.json()
        self.changes.append((plural, name, change))
        if self.answers:
            return web.json_response({}, status=self.answers.pop(0))
        found = self.objects.get(plural, {}).get(name)
        if found is None:
            return web.json_response({}, status=404)
        metadata = found["metadata"]
        annotations = {**metadata.get("annotations", {}), **change["metadata"]["annotations"]}
        self.put_object(plural, name, {**found, "metadata": {**metadata, "annotations": annotations}})
        return web.json_response({})

    def _list(self, selection: "_Selection", query: Mapping[str, str]) -> web.Response:
        at, most = int(query.get("continue", 0)), min(self.page, int(query["limit"]))
        objects = self.objects.get(selection.plural, {})
        names = sorted(name for name, content in objects.items() if selection.selects(content))
        metadata = {"resourceVersion": str(self._version)}
        if at + most < len(names):
            metadata["continue"] = str(at + most)
        items = [objects[name] for name in names[at : at + most]]
        return web.json_response({"items": items, "metadata": metadata})

    async def _watch(self, http: web.Request, selection: "_Selection", version: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(http)
        if version < self._oldest:
            gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        task, queue = asyncio.current_task(), asyncio.Queue[bytes | None]()
        assert task is not None
        for changed, plural, event in self._log:
            if changed > version:
                selection.send(plural, event, queue)
        self._open[task] = selection, queue
        try:
            while (text := await queue.get()) is not None:
                await response.write(text)
        finally:
            del self._open[task]
        return response


class _Selection:
    """What a request selects by its query."""

    def __init__(self, plural: str, query: Mapping[str, str]) -> None:
        self.plural = plural
        self._name = query.get("fieldSelector", "").removeprefix("metadata.name=")
        parts = [part.partition("=") for part in query.get("labelSelector", "").split(",") if part]
        self._labels = [(name, value if equals else None) for name, equals, value in parts]

    def selects(self, content: Content) -> bool:
        labels = content["metadata"].get("labels") or {}
        return self._name in ("", content["metadata"]["name"]) and all(
            name in labels if value is None else labels.get(name) == value for name, value in self._labels
        )

    def send(self, plural: str, event: Content, queue: "asyncio.Queue[bytes | None]") -> None:
        """Send an event, as DELETED where the object is not selected any more."""
        if plural != self.plural:
            return
        kind = event["type"] if self.selects(event["object"]) else "DELETED"
        queue.put_nowait(json.dumps({**event, "type": kind}).encode() + b"\n")
