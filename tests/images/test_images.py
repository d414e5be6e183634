"""The images of gateway and worker: built, pushed to a registry, pulled, started, and asked for an answer."""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.images.pip_settings import build_arguments
from tests.stage.ports import free_port

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".tools/images"
ENVIRONMENT = {
    **os.environ,
    "CONTAINERS_STORAGE_CONF": str(TOOLS / "storage.conf"),
    "BUILDAH_ISOLATION": "chroot",
}
COMMAND = ["serve", "--config", "/etc/radixgate/gateway.yaml"]
SECONDS_MAX = 120
TAG = "tested"


def run(*command: object, **environment: str) -> str:
    """Run a command and return what it printed. Raises AssertionError with its output if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def fetched(url: str, body: object = None) -> bytes:
    """Return the answer at a URL, once something answers there."""
    until = time.monotonic() + SECONDS_MAX
    while True:
        request = urllib.request.Request(url, headers={"content-type": "application/json"})
        if body is not None:
            request.data = json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.read()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a registry of images, and return its address."""
    directory, port = tmp_path_factory.mktemp("registry"), free_port()
    settings = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(directory / "blobs")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (directory / "config.yml").write_text(yaml.safe_dump(settings))
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(directory / "config.yml")], stdout=log, stderr=log
        )
        try:
            fetched(f"http://127.0.0.1:{port}/v2/")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def images(registry: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Build both images, push them, remove them here, pull them again; return their names.

    Everything but the base is removed in the end: the storage has no layers that share files, and gets large.
    """
    arguments = build_arguments(tmp_path_factory.mktemp("pip"))
    run(
        ROOT / "helm/images/build",
        IMAGE_REGISTRY=registry,
        IMAGE_TAG=TAG,
        IMAGE_BUILD_ARGS=" ".join(["--pull-never", *arguments]),
    )
    names = {image: f"{registry}/radixgate/{image}:{TAG}" for image in ("gateway", "worker")}
    for name in names.values():
        run("buildah", "push", "--tls-verify=false", name)
        run("buildah", "rmi", name)
        run("buildah", "pull", "--tls-verify=false", name)
    yield names
    for name in names.values():
        run("buildah", "rmi", name)
    run("buildah", "rmi", "--prune", "--force")


class Container:
    """A container of an image that runs its entry point with these arguments."""

    def __init__(self, image: str, log: Path, *arguments: object, volume: str | None = None) -> None:
        """`volume`: a directory of this machine and its path in the container, with a colon between them."""
        self.name = run("buildah", "from", "--pull-never", image).strip()
        self.image = json.loads(run("buildah", "inspect", "--type", "image", image))["OCIv1"]["config"]
        volumes = ["-v", f"{volume}:ro"] if volume is not None else []
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    "buildah",
                    "run",
                    *volumes,
                    self.name,
                    "--",
                    *self.image["Entrypoint"],
                    *map(str, arguments),
                ],
                env=ENVIRONMENT,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def run(self, *command: str) -> str:
        """Run another command in the container and return what it printed."""
        return run("buildah", "run", self.name, "--", *command).strip()

    def remove(self) -> None:
        """Stop the container as Kubernetes does, and remove it."""
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(SECONDS_MAX)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            run("buildah", "rm", self.name)


class Installed(NamedTuple):
    """A worker and a gateway before it, each in a container of its image."""

    worker: Container
    gateway: Container
    url: str


@pytest.fixture(scope="module")
def installed(images: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Run a worker with the demo's model, and a gateway that finds its settings where the chart puts them."""
    directory, worker_port, port = tmp_path_factory.mktemp("containers"), free_port(), free_port()
    settings = {
        "listen": {"port": port},
        "state_directory": "/tmp/state",
        "workers": [{"id": "w0", "url": f"http://127.0.0.1:{worker_port}"}],
    }
    mounted = directory / "settings"
    mounted.mkdir()
    (mounted / "gateway.yaml").write_text(yaml.safe_dump(settings))
    with ExitStack() as stack:
        package = "/opt/radixgate/lib/python3.11/site-packages/gateway"
        worker = Container(
            images["worker"],
            directory / "worker.log",
            *("worker", "--model", f"{package}/demo/tiny-llama", "--port", worker_port, "--kv-tokens", 4096),
        )
        stack.callback(worker.remove)
        fetched(f"http://127.0.0.1:{worker_port}/health")
        log = directory / "gateway.log"
        gateway = Container(images["gateway"], log, *COMMAND, volume=f"{mounted}:/etc/radixgate")
        stack.callback(gateway.remove)
        yield Installed(worker, gateway, f"http://127.0.0.1:{port}")


def test_a_request_is_answered_by_images_that_were_pulled(installed: Installed) -> None:
    body = {"model": "tiny-llama", "messages": [{"role": "user", "content": "What is prefix caching?"}]}
    answer = json.loads(fetched(f"{installed.url}/v1/chat/completions", body))
    assert answer["usage"]["completion_tokens"] > 0
    assert len(answer["choices"][0]["message"]["content"].split()) > 5


def test_both_run_as_a_numeric_user_other_than_root_as_kubernetes_requires(
    installed: Installed,
) -> None:
    for container in (installed.worker, installed.gateway):
        assert container.image["User"] == "10001:10001"
        assert container.run("id", "-u") == "10001"


def test_the_gateways_default_command_reads_the_settings_that_the_chart_mounts(installed: Installed) -> None:
    assert installed.gateway.image["Cmd"] == COMMAND


def test_the_gateway_has_the_extras_of_the_charts_values_and_no_torch(installed: Installed) -> None:
    modules = ("torch", "asyncpg", "grpc", "jwt", "pyarrow", "obstore")
    found = f"from importlib.util import find_spec; print([name for name in {modules} if find_spec(name)])"
    assert installed.gateway.run("python", "-c", found) == str(list(modules[1:]))


def test_no_settings_of_the_building_machine_are_in_an_image(installed: Installed) -> None:
    for container in (installed.worker, installed.gateway):
        assert container.run("sh", "-c", "cat /etc/pip.conf 2>/dev/null; env | grep -i ^pip_ || true") == ""
