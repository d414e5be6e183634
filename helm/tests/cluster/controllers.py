"""What a cluster does by itself: pods for StatefulSets and Jobs, endpoints and addresses for Services."""

import asyncio
import contextlib
import hashlib
import itertools
import json
from typing import Any

from helm.tests.cluster.api_server import Object, Store, now

REVISION = "controller-revision-hash"
COPY_BYTES = 65536


def is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return not pod["metadata"].get("deletionTimestamp") and any(
        c["type"] == "Ready" and c["status"] == "True" for c in conditions
    )


class Controllers:
    """Compares what is with what is wanted, after every change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._proxies: dict[tuple[str, int], ServiceProxy] = {}
        """By address and port; an address is given to one Service only."""

    async def run(self) -> None:
        while True:
            self._store.changed.clear()
            for each in self._store.all("StatefulSet"):
                self._stateful_set(each)
            for each in self._store.all("Job"):
                self._job(each)
            for each in self._store.all("Service"):
                await self._service(each)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._store.changed.wait(), 0.5)

    async def stop(self) -> None:
        for proxy in self._proxies.values():
            proxy.stop()

    # ---- StatefulSets

    def _stateful_set(self, owner: Object) -> None:
        metadata, spec = owner["metadata"], owner["spec"]
        wanted = 0 if metadata.get("deletionTimestamp") else spec.get("replicas", 1)
        revision = hashlib.sha256(json.dumps(spec["template"], sort_keys=True).encode()).hexdigest()[:10]
        pods = {pod["metadata"]["name"]: pod for pod in self._owned(owner)}
        names = [f"{metadata['name']}-{n}" for n in range(wanted)]
        self._change_pods(owner, pods, names, revision)
        pods = {pod["metadata"]["name"]: pod for pod in self._owned(owner)}
        ready = [pod for pod in pods.values() if is_ready(pod)]
        current = [p for p in pods.values() if p["metadata"]["labels"][REVISION] == revision]
        self._store.set_status(
            owner,
            observedGeneration=metadata["generation"],
            replicas=len(pods),
            readyReplicas=len(ready),
            availableReplicas=len(ready),
            currentReplicas=len(current),
            updatedReplicas=len(current),
            currentRevision=revision,
            updateRevision=revision,
        )
        if metadata.get("deletionTimestamp") and not pods:
            self._store.delete(owner)

    def _change_pods(self, owner: Object, pods: dict[str, Object], names: list[str], revision: str) -> None:
        parallel = owner["spec"].get("podManagementPolicy") == "Parallel"
        for name in names:
            if name not in pods:
                self._create(owner, name, owner["spec"]["template"], revision)
                if not parallel:
                    return
            elif not parallel and not is_ready(pods[name]):
                return
        for name in sorted(set(pods) - set(names), reverse=True):
            self.terminate(pods[name])
        if set(names) - set(pods):
            return
        # One at a time, from the last to the first; an unhealthy pod of an old revision is replaced at once.
        for name in reversed(names):
            pod = pods[name]
            if pod["metadata"]["labels"][REVISION] != revision:
                self.terminate(pod)
                return
            if not is_ready(pod):
                return

    def _create(self, owner: Object, name: str, template: Object, revision: str) -> None:
        labels = {**(template["metadata"].get("labels") or {}), REVISION: revision}
        spec = json.loads(json.dumps(template["spec"]))
        volumes = spec.setdefault("volumes", [])
        for claim in owner["spec"].get("volumeClaimTemplates") or []:
            claim_name = f"{claim['metadata']['name']}-{name}"
            volumes.append(
                {
                    "name": claim["metadata"]["name"],
                    "persistentVolumeClaim": {"claimName": claim_name},
                }
            )
            if self._store.find("PersistentVolumeClaim", owner["metadata"]["namespace"], claim_name) is None:
                self._store.put(
                    {
                        "apiVersion": "v1",
                        "kind": "PersistentVolumeClaim",
                        "metadata": {"name": claim_name, "namespace": owner["metadata"]["namespace"]},
                        "spec": claim["spec"],
                        "status": {"phase": "Bound"},
                    }
                )
        self._store.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": owner["metadata"]["namespace"],
                    "labels": labels,
                    "ownerReferences": [
                        {"kind": owner["kind"], "name": owner["metadata"]["name"], "controller": True}
                    ],
                },
                "spec": spec,
            }
        )

    def terminate(self, pod: Object) -> None:
        """Mark a pod for its end; the kubelet removes it once its processes are gone."""
        if not pod["metadata"].get("deletionTimestamp"):
            self._store.put({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": now()}})

    def _owned(self, owner: Object) -> list[Object]:
        me = (owner["kind"], owner["metadata"]["name"])
        return [
            pod
            for pod in self._store.all("Pod", owner["metadata"]["namespace"])
            if me in {(r["kind"], r["name"]) for r in pod["metadata"].get("ownerReferences") or []}
        ]

    # ---- Jobs

    def _job(self, owner: Object) -> None:
        metadata = owner["metadata"]
        pods = self._owned(owner)
        if metadata.get("deletionTimestamp"):
            for pod in pods:
                self.terminate(pod)
            if not pods:
                self._store.delete(owner)
            return
        if not pods:
            self._create(owner, f"{metadata['name']}-0", owner["spec"]["template"], "1")
            return
        phase = (pods[0].get("status") or {}).get("phase")
        ended = {"Succeeded": "Complete", "Failed": "Failed"}.get(phase)
        if ended:
            self._store.set_status(
                owner,
                **{phase.lower(): 1},
                conditions=[{"type": ended, "status": "True", "reason": ended, "message": ended}],
            )

    # ---- Services

    async def _service(self, service: Object) -> None:
        metadata, spec = service["metadata"], service["spec"]
        if not spec.get("selector"):
            return
        pods = self._store.all("Pod", metadata["namespace"], spec["selector"])
        self._slice(service, pods)
        if spec.get("clusterIP") == "None":
            return
        for port in spec["ports"]:
            key = (spec["clusterIP"], port["port"])
            if key not in self._proxies:
                proxy = self._proxies[key] = ServiceProxy()
                await proxy.start(spec["clusterIP"], port["port"])
            targets = [pod for pod in pods if spec.get("publishNotReadyAddresses") or is_ready(pod)]
            self._proxies[key].targets = [
                (pod["status"]["podIP"], _port(pod, port["targetPort"]))
                for pod in targets
                if (pod.get("status") or {}).get("podIP")
            ]

    def _slice(self, service: Object, pods: list[Object]) -> None:
        """The EndpointSlice of a Service."""
        metadata, ports = service["metadata"], service["spec"]["ports"]
        known = [pod for pod in pods if (pod.get("status") or {}).get("podIP")]
        wanted: dict[str, Any] = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": [pod["status"]["podIP"]],
                    "conditions": {
                        "ready": is_ready(pod),
                        "terminating": bool(pod["metadata"].get("deletionTimestamp")),
                    },
                    "targetRef": {"kind": "Pod", "name": pod["metadata"]["name"]},
                }
                for pod in known
            ],
            "ports": [
                {"name": p["name"], "port": _port(known[0], p["targetPort"]), "protocol": "TCP"}
                for p in ports
                if known
            ],
        }
        found = self._store.find("EndpointSlice", metadata["namespace"], metadata["name"])
        if found is None or any(found.get(part) != wanted[part] for part in ("endpoints", "ports")):
            labels = {"kubernetes.io/service-name": metadata["name"]}
            wanted["metadata"] = {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "labels": labels,
            }
            self._store.put(wanted)


def _port(pod: Object, target: int | str) -> int:
    if isinstance(target, int):
        return target
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or []:
            if port["name"] == target:
                return int(port["containerPort"])
    raise KeyError(target)


class ServiceProxy:
    """The address of a Service: each connection goes to the next of its ready pods."""

    def __init__(self) -> None:
        self.targets: list[tuple[str, int]] = []
        self._turn = itertools.count()
        self._server: asyncio.Server | None = None

    async def start(self, address: str, port: int) -> None:
        self._server = await asyncio.start_server(self._connected, address, port)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if self.targets:
                address, port = self.targets[next(self._turn) % len(self.targets)]
                there, here = await asyncio.open_connection(address, port)
                await asyncio.gather(_copy(reader, here), _copy(there, writer))
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(COPY_BYTES):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.close()
