"""Runs pods as local processes: volumes, init containers, probes, termination."""

import asyncio
import base64
import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from helm.tests.cluster.api_server import Object, Store, now
from helm.tests.cluster.images import Image, Images

PROBE_SECONDS = 0.5
RESTART_SECONDS_MAX = 5.0
READ_SECONDS_MAX = 5.0
"""Time for the output of processes that have ended; another process may have inherited the pipe."""
LOG_CHARACTERS_MAX = 20_000
HOST = re.compile(r"""(?:(?<=//)|(?<=@))([a-z0-9][a-z0-9.-]*[a-z0-9])(?=[:/"'\s,]|$)""")


class PodFailed(Exception):
    """A container of a pod has ended, or cannot start."""


class Pod:
    """One pod: its processes, from its creation to its end.

    `resolve` returns the address behind a name, or None.
    """

    def __init__(
        self,
        found: Object,
        store: Store,
        images: Images,
        directory: Path,
        address: str,
        resolve: Callable[[str], str | None],
        api: str,
    ) -> None:
        self.name: str = found["metadata"]["name"]
        self.namespace: str = found["metadata"]["namespace"]
        self.address = address
        self.restarts = 0
        self.stopping = False
        self.task: asyncio.Task[None] | None = None
        self._spec: Object = found["spec"]
        self._store = store
        self._images = images
        self._claims = directory / "claims"
        self._directory = directory / "pods" / found["metadata"]["uid"]
        self._resolve = resolve
        self._api = api
        self._processes: list[tuple[asyncio.subprocess.Process, Image]] = []
        self._reading: set[asyncio.Task[None]] = set()
        self._lines: list[str] = []

    @property
    def log(self) -> str:
        return "".join(self._lines)[-LOG_CHARACTERS_MAX:]

    async def run(self) -> None:
        """Run until it ends by itself, or is stopped."""
        self._status("Pending")
        try:
            self._make_volumes()
            for container in self._spec.get("initContainers") or []:
                await self._until_done(container)
            await self._serve()
        except PodFailed as err:
            self._lines.append(f"{self.name}: {err}\n")
            self._status("Failed")
        finally:
            self._kill()

    async def stop(self) -> None:
        """Terminate as a kubelet does: a signal, a time of grace, and the end."""
        self.stopping = True
        self._status("Running", ready=False)
        grace = self._spec.get("terminationGracePeriodSeconds", 30)
        for process, image in self._processes:
            if process.returncode is None:
                process.send_signal(signal.Signals[image.stop_signal])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*(process.wait() for process, _ in self._processes))
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        await asyncio.gather(*(_ended(process) for process, _ in self._processes))
        if self._reading:
            await asyncio.wait(self._reading, timeout=READ_SECONDS_MAX)
        shutil.rmtree(self._directory, ignore_errors=True)

    async def execute(self, *command: str, stdin: bytes | None = None) -> tuple[int, bytes, str]:
        """Run a command in the first container: exit code, standard output, standard error."""
        container = self._spec["containers"][0]
        image = self._images.find(container["image"])
        process = await self._spawn(list(command), container, image, capture=True)
        try:
            output, errors = await process.communicate(stdin)
        finally:
            await _ended(process)  # A probe is cancelled when its pod ends.
        return process.returncode or 0, output, errors.decode()

    async def _serve(self) -> None:
        """Run the containers together; one that ends is started again unless the pod is of a job."""
        containers = self._spec["containers"]
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self._keep(container)) for container in containers]
            probing = group.create_task(self._probe(containers[0]))
            done = await asyncio.gather(*running)
            probing.cancel()
        self._status("Succeeded" if not any(done) else "Failed")

    async def _keep(self, container: Object) -> int:
        """Run a container, again and again if the pod's policy says so; return its last exit code."""
        wait = 0.5
        while True:
            process, image = await self._start(container)
            self._processes.append((process, image))
            code = await process.wait()
            self._processes.remove((process, image))
            if self.stopping or self._spec.get("restartPolicy", "Always") == "Never":
                return code
            self.restarts += 1
            self._status("Running", ready=False)
            await asyncio.sleep(wait)
            wait = min(2 * wait, RESTART_SECONDS_MAX)

    async def _until_done(self, container: Object) -> None:
        wait = 0.5
        while True:
            process, image = await self._start(container)
            self._processes.append((process, image))
            code = await process.wait()
            self._processes.remove((process, image))
            if code == 0:
                return
            if self.stopping or self._spec.get("restartPolicy", "Always") == "Never":
                raise PodFailed(f"init container {container['name']} ended with {code}")
            self.restarts += 1
            await asyncio.sleep(wait)
            wait = min(2 * wait, RESTART_SECONDS_MAX)

    async def _start(self, container: Object) -> tuple[asyncio.subprocess.Process, Image]:
        try:
            image = self._images.find(container["image"])
        except KeyError:
            self._lines.append(f"{container['name']}: ErrImagePull {container['image']}\n")
            await asyncio.sleep(3600)
            raise PodFailed("no such image") from None
        command = container.get("command") or list(image.entrypoint)
        command = [*command, *(container.get("args") or [])]
        process = await self._spawn(command, container, image)
        self._lines.append(f"--- {container['name']} started\n")
        reading = asyncio.create_task(self._read(process))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        return process, image

    async def _spawn(
        self, command: list[str], container: Object, image: Image, *, capture: bool = False
    ) -> asyncio.subprocess.Process:
        variables = self._environment(container)
        paths = self._paths(container)
        words = [self._local(_expanded(word, variables), paths) for word in command]
        local = {name: self._local(value, paths) for name, value in variables.items()}
        # Commands of probes may be in a directory of this user's.
        user = image.user if not capture else None
        own = {
            **image.variables,
            "PATH": f"{self._images.programs}:{os.environ['PATH']}",
            "HOME": str(self._directory),
            "TMPDIR": str(self._directory),
            "POD_IP": self.address,
            "POD_DIRECTORY": str(self._directory),
            "PYTHONUNBUFFERED": "1",
        }
        if self._spec.get("automountServiceAccountToken"):
            path = os.pathsep.join(filter(None, (str(self._images.account_patch), own.get("PYTHONPATH"))))
            own |= {"PYTHONPATH": path, "CLUSTER_API": self._api, "CLUSTER_ACCOUNT": str(self._account())}
        return await asyncio.create_subprocess_exec(
            *words,
            env={**local, **own},
            cwd=self._directory,
            stdin=asyncio.subprocess.PIPE if capture else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE if capture else asyncio.subprocess.STDOUT,
            start_new_session=True,
            **({"user": user, "group": user, "extra_groups": []} if user is not None else {}),
        )

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self._lines.append(line.decode(errors="replace"))

    def _kill(self) -> None:
        for process, _ in self._processes:
            _kill_group(process)

    # ---- Volumes and variables

    def _make_volumes(self) -> None:
        self._directory.mkdir(parents=True)
        self._directory.chmod(0o777)
        for volume in self._spec.get("volumes") or []:
            place = self._place(volume)
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o777)
            source = volume.get("configMap") or {}
            if source:
                # Paths of a mount inside the file are those of the container that mounts it.
                container = self._spec["containers"][0]
                files = self._need("ConfigMap", source["name"])["data"]
                for name, text in files.items():
                    (place / name).write_text(self._local(text, self._paths(container)), encoding="utf-8")
            if "secret" in volume:
                files = self._need("Secret", volume["secret"]["secretName"])["data"]
                for name, text in files.items():
                    (place / name).write_bytes(base64.b64decode(text))

    def _account(self) -> Path:
        """The directory of the pod's service account."""
        account = self._directory / "service-account"
        account.mkdir(exist_ok=True)
        (account / "namespace").write_text(self.namespace)
        (account / "token").write_text(f"{self.namespace}:{self._spec['serviceAccountName']}")
        return account

    def _need(self, kind: str, name: str) -> Object:
        found = self._store.find(kind, self.namespace, name)
        if found is None:
            raise PodFailed(f"there is no {kind} {name}")
        return found

    def _place(self, volume: Object) -> Path:
        if "persistentVolumeClaim" in volume:
            return self._claims / str(volume["persistentVolumeClaim"]["claimName"])
        return self._directory / str(volume["name"])

    def _paths(self, container: Object) -> dict[str, str]:
        places = {volume["name"]: self._place(volume) for volume in self._spec.get("volumes") or []}
        return {
            mount["mountPath"]: str(places[mount["name"]] / mount.get("subPath", ""))
            for mount in container.get("volumeMounts") or []
        }

    def _environment(self, container: Object) -> dict[str, str]:
        found: dict[str, str] = {}
        for each in container.get("env") or []:
            reference = (each.get("valueFrom") or {}).get("secretKeyRef")
            field = (each.get("valueFrom") or {}).get("fieldRef")
            if reference:
                data = self._need("Secret", reference["name"])["data"]
                found[each["name"]] = base64.b64decode(data[reference["key"]]).decode()
            elif field:
                found[each["name"]] = {"metadata.name": self.name, "metadata.namespace": self.namespace}.get(
                    field["fieldPath"], self.address
                )
            else:
                found[each["name"]] = _expanded(each.get("value", ""), found)
        return found

    def _local(self, text: str, paths: Mapping[str, str]) -> str:
        """The text with this machine's paths and addresses in place of the pod's."""
        if paths:
            every = "|".join(re.escape(path) for path in sorted(paths, key=len, reverse=True))
            text = re.sub(rf"(?<![\w./-])(?:{every})(?=[/\s\"'}},]|$)", lambda at: paths[at[0]], text)
        text = HOST.sub(lambda at: self._resolve(at[1]) or at[0], text)
        return text.replace("0.0.0.0", self.address)  # noqa: S104

    # ---- Probes

    async def _probe(self, container: Object) -> None:
        """Ask the readiness probe again and again, after the startup probe; kill what fails its liveness."""
        startup, ready, live = (
            container.get(f"{kind}Probe") for kind in ("startup", "readiness", "liveness")
        )
        started, failures = startup is None, 0
        self._status("Running", ready=not ready and started)
        while True:
            if not started and startup is not None:
                started = await self._asks(startup, container)
            elif not self.stopping:
                answers = ready is None or await self._asks(ready, container)
                self._status("Running", ready=answers and not self.stopping)
                alive = live is None or answers or await self._asks(live, container)
                failures = 0 if alive else failures + 1
            await asyncio.sleep(PROBE_SECONDS)

    async def _asks(self, probe: Object, container: Object) -> bool:
        if "exec" in probe:
            code, _, _ = await self.execute(*probe["exec"]["command"])
            return code == 0
        asked = probe.get("httpGet") or probe["tcpSocket"]
        port = asked["port"]
        if isinstance(port, str):
            port = next(p["containerPort"] for p in container["ports"] if p["name"] == port)
        if "httpGet" not in probe:
            return await _connects(self.address, port)
        scheme = asked.get("scheme", "HTTP").lower()
        timeout = aiohttp.ClientTimeout(total=10)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as http:
                url = f"{scheme}://{self.address}:{port}{asked['path']}"
                async with http.get(url, ssl=False) as answer:
                    return 200 <= answer.status < 400
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _status(self, phase: str, *, ready: bool = False) -> None:
        found = self._store.find("Pod", self.namespace, self.name)
        if found is None:
            return
        condition = {"status": str(ready), "lastTransitionTime": now()}
        before = found.get("status") or {}
        if before.get("phase") == phase and before.get("conditions", [{}])[0].get("status") == str(ready):
            return
        self._store.set_status(
            found,
            phase=phase,
            podIP=self.address,
            startTime=before.get("startTime", now()),
            conditions=[{"type": "Ready", **condition}, {"type": "ContainersReady", **condition}],
        )


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    """The word with `$(NAME)` replaced, as Kubernetes does in arguments."""
    return re.sub(r"\$\((\w+)\)", lambda at: variables.get(at[1], at[0]), word)


def _kill_group(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Kill a process, if it runs, and wait for its end: an event loop must not close before."""
    if process.returncode is None:
        _kill_group(process)
    await process.wait()


async def _connects(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, port)
    except OSError:
        return False
    writer.close()
    return True


async def until(answers: Callable[[], Any], seconds: float, what: str) -> None:
    """Wait until `answers` returns something true. Raises AssertionError after this time."""
    end = time.monotonic() + seconds
    while not answers():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.1)
