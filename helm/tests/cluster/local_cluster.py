"""LocalCluster: API server, controllers and kubelet together, and helm against them."""

import asyncio
import base64
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from helm.tests.cluster.api_server import NETWORK, ApiServer, Object, Store
from helm.tests.cluster.controllers import Controllers, is_ready
from helm.tests.cluster.images import Images
from helm.tests.cluster.kubelet import Pod, until
from helm.tests.rendering import CHART, HELM

NAMESPACE = "llm"


class LocalCluster:
    """A cluster of one node."""

    def __init__(self, directory: Path) -> None:
        self.store = Store()
        self.images = Images(directory / "programs")
        self.pods: dict[str, Pod] = {}
        """Running pods by name."""
        self.controllers = Controllers(self.store)
        self.server = ApiServer(self.store, self._log, self._deleted)
        self._directory = directory
        self._addresses: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._logs: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self.server.start()
        for name in (NAMESPACE, "default"):
            self.store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self._tasks = [asyncio.create_task(self.controllers.run()), asyncio.create_task(self._kubelet())]

    async def stop(self) -> None:
        tasks = [*self._tasks, *self._ending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pod in self.pods.values():
            pod._spec["terminationGracePeriodSeconds"] = 2
        await asyncio.gather(*(pod.stop() for pod in self.pods.values()))
        await self.controllers.stop()
        await self.server.stop()

    async def helm(self, *command: str, values: Mapping[str, Any] | None = None, seconds: float = 180) -> str:
        """Run helm against this cluster and return its output; fail if it fails."""
        words = [HELM, *command, f"--kube-apiserver={self.server.url}", "--namespace", NAMESPACE]
        if values is not None:
            words += ["--values", "-"]
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={
                **os.environ,
                "KUBECONFIG": os.devnull,
                "HELM_CACHE_HOME": str(self._directory / "helm"),
                "HELM_CONFIG_HOME": str(self._directory / "helm"),
            },
        )
        try:
            async with asyncio.timeout(seconds + 20):
                output, _ = await process.communicate(
                    json.dumps(values).encode() if values is not None else b""
                )
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        text = output.decode()
        assert process.returncode == 0, f"{text}\n{self.logs()}"
        return text

    async def install(self, values: Mapping[str, Any], *more: str, command: str = "install") -> str:
        """Install or upgrade the release, and wait until it serves."""
        done = await self.helm(
            command, "release", str(CHART), "--wait", "--timeout", "170s", *more, values=values
        )
        await self.wait_until_ready()
        return done

    async def wait_until_ready(self, seconds: float = 120) -> None:
        """Wait until every StatefulSet has only ready pods of its present template."""

        def done() -> bool:
            for owner in self.store.all("StatefulSet"):
                status, wanted = owner.get("status") or {}, owner["spec"].get("replicas", 1)
                if status.get("observedGeneration") != owner["metadata"]["generation"]:
                    return False
                counts = {status.get(f"{kind}Replicas") for kind in ("ready", "updated")}
                if counts != {wanted} or status.get("replicas") != wanted:
                    return False
            return True

        try:
            await until(done, seconds, "pods are not ready")
        except AssertionError as err:
            raise AssertionError(f"{err}:\n{self.logs()}") from None

    def put_secret(self, name: str, texts: Mapping[str, str]) -> None:
        """Create a Secret of the operator's."""
        data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        metadata = {"name": name, "namespace": NAMESPACE}
        self.store.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    def address(self, service: str, port: int) -> str:
        """The URL of a Service."""
        found = self.store.find("Service", NAMESPACE, service)
        assert found is not None
        return f"http://{found['spec']['clusterIP']}:{port}"

    def logs(self) -> str:
        """The end of every pod's log, for a failed assertion."""
        return "\n".join(
            f"==== {pod.name} ({pod.restarts} restarts)\n{pod.log[-3000:]}" for pod in self.pods.values()
        )

    def _log(self, name: str) -> str:
        return self.pods[name].log if name in self.pods else self._logs.get(name, "")

    def _deleted(self, found: Object) -> None:
        if found["kind"] == "Pod" and found["metadata"]["name"] not in self.pods:
            self.store.delete(found)
        else:
            self.controllers.terminate(found)

    async def _kubelet(self) -> None:
        """Start pods that are new, stop those that are marked for it."""
        watched = self.store.watch()
        while True:
            what, found = await watched.get()
            if found["kind"] != "Pod" or what == "DELETED":
                continue
            name = found["metadata"]["name"]
            if found["metadata"].get("deletionTimestamp"):
                if name in self.pods and not self.pods[name].stopping:
                    self.pods[name].stopping = True
                    task = asyncio.create_task(self._end(name))
                    self._ending.add(task)
                    task.add_done_callback(self._ending.discard)
            elif name not in self.pods:
                pod = self.pods[name] = Pod(
                    found,
                    self.store,
                    self.images,
                    self._directory,
                    self._address_of(name),
                    self._resolve,
                    self.server.url,
                )
                pod.task = asyncio.create_task(pod.run())

    async def _end(self, name: str) -> None:
        pod = self.pods[name]
        await pod.stop()
        self._logs[name] = pod.log
        del self.pods[name]
        found = self.store.find("Pod", NAMESPACE, name)
        if found is not None:
            self.store.delete(found)

    def _address_of(self, pod: str) -> str:
        """The address of a pod, which in this cluster it keeps for good."""
        number = self._addresses.get(pod) or f"127.77.{NETWORK}.{next(self._numbers)}"
        return self._addresses.setdefault(pod, number)

    def _resolve(self, name: str) -> str | None:
        """What the cluster's DNS would answer: SERVICE, or POD.SERVICE, and perhaps the namespace behind it."""
        parts = (
            name.removesuffix(".cluster.local").removesuffix(".svc").removesuffix(f".{NAMESPACE}").split(".")
        )
        service = self.store.find("Service", NAMESPACE, parts[-1])
        if service is None or len(parts) > 2:
            return None
        if len(parts) == 2:
            return self._address_of(parts[0])
        address: str = service["spec"]["clusterIP"]
        if address != "None":
            return address
        pods = self.store.all("Pod", NAMESPACE, service["spec"]["selector"])
        return next((self._address_of(pod["metadata"]["name"]) for pod in pods if is_ready(pod)), None)


@asynccontextmanager
async def local_cluster() -> AsyncIterator[LocalCluster]:
    """A cluster for one test."""
    # Not below pytest's directory: PostgreSQL, which does not run as root, has to come through all of the path.
    directory = Path(tempfile.mkdtemp(prefix="radixgate-cluster-"))
    os.chmod(directory, 0o755)  # noqa: S103
    cluster = LocalCluster(directory)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)
