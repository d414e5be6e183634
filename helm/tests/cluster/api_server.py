"""An API server of Kubernetes in memory, as far as helm, kubectl and the gateway speak with it."""

import asyncio
import itertools
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from aiohttp import web

from helm.tests.cluster.protobuf import MAGIC, secret_of

Object = dict[str, Any]
APPLY = "application/apply-patch+yaml"
CHANGES_KEPT = 1000
BODY_BYTES_MAX = 16 * 1024**2
NETWORK = os.getpid() % 250
"""The third number of the addresses of pods and Services: clusters of several processes share this machine."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object, and where it is found."""

    version: str
    kind: str
    plural: str
    namespaced: bool = True


RESOURCES = [
    Resource("v1", "Namespace", "namespaces", False),
    *(
        Resource("v1", kind, plural)
        for kind, plural in (
            *(("Pod", "pods"), ("Service", "services"), ("Secret", "secrets"), ("ConfigMap", "configmaps")),
            *(("ServiceAccount", "serviceaccounts"), ("PersistentVolumeClaim", "persistentvolumeclaims")),
            ("Event", "events"),
        )
    ),
    Resource("apps/v1", "StatefulSet", "statefulsets"),
    Resource("apps/v1", "Deployment", "deployments"),
    Resource("batch/v1", "Job", "jobs"),
    Resource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Resource("networking.k8s.io/v1", "Ingress", "ingresses"),
    Resource("rbac.authorization.k8s.io/v1", "Role", "roles"),
    Resource("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    Resource("discovery.k8s.io/v1", "EndpointSlice", "endpointslices"),
    Resource("keda.sh/v1alpha1", "ScaledObject", "scaledobjects"),
]
BY_KIND = {each.kind: each for each in RESOURCES}


class Store:
    """The objects by kind, namespace and name; every change has a number and is told to those who watch."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._numbers = itertools.count(1)
        self._watchers: list[asyncio.Queue[tuple[str, Object]]] = []
        self._log: deque[tuple[str, Object]] = deque(maxlen=CHANGES_KEPT)

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        return self._objects.get((kind, namespace, name))

    def all(self, kind: str, namespace: str = "", labels: dict[str, str] | None = None) -> list[Object]:
        wanted = (labels or {}).items()
        return [
            found
            for (each, space, _), found in sorted(self._objects.items())
            if each == kind
            and namespace in ("", space)
            and wanted <= (found["metadata"].get("labels") or {}).items()
        ]

    def put(self, given: Object) -> Object:
        """Store an object, with what a server adds to it."""
        metadata, kind = given["metadata"], given["kind"]
        key = (kind, metadata.get("namespace", ""), metadata["name"])
        before = self._objects.get(key)
        past = before["metadata"] if before else {}
        number = str(next(self._numbers))
        same = before is not None and before.get("spec") == given.get("spec")
        metadata |= {
            "uid": past.get("uid", f"uid-{number}"),
            "creationTimestamp": past.get("creationTimestamp", now()),
            "resourceVersion": number,
            "generation": past.get("generation", 0) + (not same),
        }
        self._objects[key] = given
        self._tell("MODIFIED" if before else "ADDED", given)
        return given

    def delete(self, found: Object) -> None:
        metadata = found["metadata"]
        self._objects.pop((found["kind"], metadata.get("namespace", ""), metadata["name"]), None)
        metadata["resourceVersion"] = str(next(self._numbers))
        self._tell("DELETED", found)

    def set_status(self, found: Object, **status: Any) -> None:
        """Change the status, if it is another one."""
        if {**found.get("status", {}), **status} != found.get("status"):
            self.put({**found, "status": {**found.get("status", {}), **status}})

    def watch(self, since: int | None = None) -> "asyncio.Queue[tuple[str, Object]]":
        """A queue of all changes from now on, or after a version."""
        queue: asyncio.Queue[tuple[str, Object]] = asyncio.Queue()
        for what, found in self._log if since is not None else ():
            if int(found["metadata"]["resourceVersion"]) > (since or 0):
                queue.put_nowait((what, found))
        self._watchers.append(queue)
        return queue

    def unwatch(self, queue: "asyncio.Queue[tuple[str, Object]]") -> None:
        self._watchers.remove(queue)

    def version(self) -> str:
        return str(next(self._numbers))

    def _tell(self, what: str, found: Object) -> None:
        self._log.append((what, {**found, "metadata": {**found["metadata"]}}))
        for queue in self._watchers:
            queue.put_nowait((what, found))
        self.changed.set()


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class ApiServer:
    """Serves a store. `logs` returns the log of a pod, `deleted` is called instead of removing a pod at once."""

    def __init__(self, store: Store, logs: Callable[[str], str], deleted: Callable[[Object], None]) -> None:
        self.url = ""
        self._store = store
        self._logs = logs
        self._deleted = deleted
        self._addresses = (f"127.{78 + n // 250}.{NETWORK}.{n % 250 + 1}" for n in itertools.count())
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.add_routes([web.route("*", "/{path:.*}", self._handle)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        path = http.path.strip("/")
        page = _discovery(path)
        if page is not None:
            return web.json_response(page)
        parts = path.split("/")
        version, rest = ("v1", parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
        namespace = ""
        if len(rest) >= 2 and rest[0] == "namespaces" and (len(rest) > 2):
            namespace, rest = rest[1], rest[2:]
        found = [r for r in RESOURCES if rest and (r.version, r.plural) == (version, rest[0])]
        if not found:
            return _status(404, "NotFound")
        if not self._may(http, found[0], namespace):
            return _status(403, "Forbidden")
        if len(rest) == 1:
            return await self._collection(http, found[0], namespace)
        if rest[2:] == ["log"]:
            return web.Response(text=self._logs(rest[1]))
        return await self._single(http, found[0], namespace, rest[1])

    def _may(self, http: web.Request, kind: Resource, namespace: str) -> bool:
        """Whether Roles admit the request, if it is one of a pod: its token has the names of its account."""
        token = http.headers.get("authorization", "").removeprefix("Bearer ")
        if not token:
            return True
        space, _, account = token.partition(":")
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(http.method, "list")
        if verb == "list" and http.query.get("watch"):
            verb = "watch"
        group = kind.version.rpartition("/")[0]
        wanted = ("ServiceAccount", account, space)
        for binding in self._store.all("RoleBinding", namespace):
            if wanted not in {(s["kind"], s["name"], s.get("namespace")) for s in binding["subjects"]}:
                continue
            role = self._store.find("Role", namespace, binding["roleRef"]["name"])
            for rule in role["rules"] if role is not None else ():
                if group in rule["apiGroups"] and kind.plural in rule["resources"] and verb in rule["verbs"]:
                    return True
        return False

    async def _collection(self, http: web.Request, kind: Resource, namespace: str) -> web.StreamResponse:
        if http.method == "POST":
            given = await _body(http)
            given["metadata"]["namespace"] = namespace
            if self._store.find(kind.kind, namespace, given["metadata"]["name"]):
                return _status(409, "AlreadyExists")
            return web.json_response(self._put(given, kind), status=201)
        if http.method != "GET":
            return _status(405, "MethodNotAllowed")
        wanted = _selection(http)
        listed = [o for o in self._store.all(kind.kind, namespace) if wanted(o)]
        if http.query.get("watch") in ("true", "1"):
            return await self._watch(http, kind, namespace, wanted, listed)
        return web.json_response(
            {
                "kind": f"{kind.kind}List",
                "apiVersion": kind.version,
                "metadata": {"resourceVersion": self._store.version()},
                "items": listed,
            }
        )

    async def _watch(
        self,
        http: web.Request,
        kind: Resource,
        namespace: str,
        wanted: Callable[[Object], bool],
        listed: list[Object],
    ) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "application/json"})
        await answer.prepare(http)
        version = http.query.get("resourceVersion", "0")
        queue = self._store.watch(int(version) if version != "0" else None)
        try:
            if http.query.get("sendInitialEvents") == "true":
                for each in listed:
                    await answer.write(_event("ADDED", each))
                mark = {
                    "resourceVersion": self._store.version(),
                    "annotations": {"k8s.io/initial-events-end": "true"},
                }
                bookmark = {"kind": kind.kind, "apiVersion": kind.version, "metadata": mark}
                await answer.write(_event("BOOKMARK", bookmark))
            while True:
                what, found = await queue.get()
                space = found["metadata"].get("namespace", "")
                if found["kind"] == kind.kind and namespace in ("", space) and wanted(found):
                    await answer.write(_event(what, found))
        except ConnectionError:
            return answer
        finally:
            self._store.unwatch(queue)

    async def _single(
        self, http: web.Request, kind: Resource, namespace: str, name: str
    ) -> web.StreamResponse:
        found = self._store.find(kind.kind, namespace, name)
        applied = http.method == "PATCH" and http.content_type == APPLY
        if found is None and not applied:
            return _status(404, "NotFound")
        if http.method == "GET":
            return web.json_response(found)
        if http.method == "DELETE" and found is not None:
            if kind.kind in ("Pod", "StatefulSet", "Job"):
                self._deleted(found)
            else:
                self._store.delete(found)
            return _status(200, "")
        given = await _body(http)
        if http.method == "PATCH" and not applied and found is not None:
            given = _merged(found, given)
        given.setdefault("metadata", {}).setdefault("name", name)
        if namespace:
            given["metadata"]["namespace"] = namespace
        return web.json_response(self._put(given, kind))

    def _put(self, given: Object, kind: Resource) -> Object:
        metadata = given["metadata"]
        given |= {"kind": kind.kind, "apiVersion": kind.version}
        before = self._store.find(kind.kind, metadata.get("namespace", ""), metadata["name"])
        if before is not None and "status" in before:
            given["status"] = before["status"]
        if kind.kind == "Service":
            past = (before or {}).get("spec", {}).get("clusterIP")
            given["spec"].setdefault("clusterIP", past or next(self._addresses))
        if kind.kind == "PersistentVolumeClaim":
            given["status"] = {"phase": "Bound"}
        if kind.kind == "PodDisruptionBudget":
            given["status"] = {"currentHealthy": 1, "desiredHealthy": 0, "disruptionsAllowed": 1}
        stored = self._store.put(given)
        if kind.kind in ("PodDisruptionBudget",):
            stored["status"]["observedGeneration"] = stored["metadata"]["generation"]
        return stored


def _selection(http: web.Request) -> Callable[[Object], bool]:
    labels = [part for part in http.query.get("labelSelector", "").split(",") if part]
    fields = dict(part.split("=", 1) for part in http.query.get("fieldSelector", "").split(",") if part)

    def wanted(found: Object) -> bool:
        own = found["metadata"].get("labels") or {}
        name = fields.get("metadata.name", found["metadata"]["name"])
        return found["metadata"]["name"] == name and all(_matches(part, own) for part in labels)

    return wanted


def _matches(part: str, labels: dict[str, str]) -> bool:
    name, negated, value = part.partition("!=")
    if negated:
        return labels.get(name) != value
    name, equals, value = part.replace("==", "=").partition("=")
    return labels.get(name) == value if equals else name in labels


async def _body(http: web.Request) -> Object:
    body = await http.read()
    if body.startswith(MAGIC):
        return secret_of(body)
    found: Object = yaml.safe_load(body) if "yaml" in http.content_type else json.loads(body)
    return found


def _merged(found: Any, change: Any) -> Any:
    """A JSON merge patch."""
    if not isinstance(change, dict) or not isinstance(found, dict):
        return change
    merged = {**found}
    for name, value in change.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(found.get(name), value)
    return merged


def _status(code: int, reason: str) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Success" if code < 300 else "Failure",
        "reason": reason,
        "code": code,
        "message": reason,
    }
    return web.json_response(body, status=code)


def _event(what: str, found: Object) -> bytes:
    return json.dumps({"type": what, "object": found}).encode() + b"\n"


def _discovery(path: str) -> Object | None:
    groups = sorted({r.version for r in RESOURCES if "/" in r.version})
    if path == "version":
        return {"major": "1", "minor": "36", "gitVersion": "v1.36.0"}
    if path == "api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(map(_group, groups))}
    for version in ("v1", *groups):
        if path == _prefix(version):
            return {
                "kind": "APIResourceList",
                "groupVersion": version,
                "resources": [
                    {
                        "name": r.plural,
                        "singularName": r.kind.lower(),
                        "kind": r.kind,
                        "namespaced": r.namespaced,
                        "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
                    }
                    for r in RESOURCES
                    if r.version == version
                ],
            }
        if path == f"openapi/v3/{_prefix(version)}":
            return dict(_schemas(version))
    if path == "openapi/v3":
        pages = {_prefix(v): {"serverRelativeURL": f"/openapi/v3/{_prefix(v)}"} for v in ("v1", *groups)}
        return {"paths": pages}
    return None


def _prefix(version: str) -> str:
    return "api/v1" if version == "v1" else f"apis/{version}"


def _group(version: str) -> Object:
    served = {"groupVersion": version, "version": version.partition("/")[2]}
    return {"name": version.partition("/")[0], "versions": [served], "preferredVersion": served}


def _schemas(version: str) -> Iterator[tuple[str, Any]]:
    """As little of OpenAPI as lets helm and kubectl send objects without a check of theirs."""
    group, slash, name = version.rpartition("/")
    kinds = {
        r.kind: {"group": group if slash else "", "version": name, "kind": r.kind}
        for r in RESOURCES
        if r.version == version
    }
    yield "openapi", "3.0.0"
    yield "info", {"title": "Kubernetes", "version": "v1.36.0"}
    yield (
        "paths",
        {
            f"/{_prefix(version)}/namespaces/{{namespace}}/{BY_KIND[kind].plural}/{{name}}": {
                "patch": {
                    "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
                    "responses": {},
                    "x-kubernetes-group-version-kind": known,
                }
            }
            for kind, known in kinds.items()
        },
    )
    yield (
        "components",
        {
            "schemas": {
                f"{version.replace('/', '.')}.{kind}": {
                    "type": "object",
                    "x-kubernetes-group-version-kind": [known],
                    "x-kubernetes-preserve-unknown-fields": True,
                }
                for kind, known in kinds.items()
            }
        },
    )
