"""The local cluster ends what it started: its processes would otherwise end in the middle of another test."""

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from helm.tests.cluster.api_server import Store
from helm.tests.cluster.images import Images
from helm.tests.cluster.kubelet import Pod, until

OBSTINATE = "trap '' TERM; echo deaf; while true; do sleep 0.2; done"


def pod(directory: Path, *command: str, **more: Any) -> Pod:
    """A pod with a container of this command; the image is one that the cluster knows."""
    container = {
        "name": "main",
        "image": "localhost/radixgate/gateway:0.1.0",
        "command": list(command),
        **more,
    }
    found = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "llm", "uid": "1"},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0.1},
    }
    store = Store()
    store.put(found)
    images = Images(directory / "programs")
    return Pod(found, store, images, directory, "127.0.0.1", lambda _: None, "http://127.0.0.1:1")


def unraisable(
    scenario: Callable[[], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Run it on an event loop of its own, and return what could not be raised when its rest was collected."""
    found: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: found.append(repr(what.exc_value)))
    asyncio.run(scenario())
    gc.collect()
    return found


def test_a_pod_that_has_to_be_killed_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        started = pod(tmp_path, "sh", "-c", OBSTINATE)
        started.task = asyncio.create_task(started.run())
        await until(lambda: "deaf" in started.log, 20, "the pod does not start")
        await started.stop()

    assert unraisable(scenario, monkeypatch) == []


def test_a_probe_that_is_given_up_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    probe = {"exec": {"command": ["sh", "-c", f"echo > {asked}; {OBSTINATE}"]}}

    async def scenario() -> None:
        started = pod(tmp_path, "sh", "-c", "echo ready; exec sleep 60", readinessProbe=probe)
        started.task = asyncio.create_task(started.run())
        await until(asked.exists, 20, "the pod is not asked")
        await started.stop()

    assert unraisable(scenario, monkeypatch) == []
