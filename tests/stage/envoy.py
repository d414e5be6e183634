"""A real Envoy that asks a gateway for the worker of each request, and carries the request there."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.stage.ports import free_port

PROGRAM = Path(".tools/envoy/envoy")
DOCUMENTED = Path("docs/envoy.yaml")
START_SECONDS_MAX = 30.0

FULL_DUPLEX = {
    "request_header_mode": "SEND",
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
    "response_header_mode": "SEND",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "response_trailer_mode": "SEND",
}


class Envoy:
    """One Envoy in a process of its own, in front of the endpoint picker at this port."""

    def __init__(
        self,
        directory: Path,
        picker_port: int,
        *,
        workers: dict[str, Any] | None = None,
        mode: dict[str, str] | None = None,
        threads: int = 1,
    ) -> None:
        self.port = free_port()
        self._admin_port = free_port()
        self._log = directory / "envoy.log"
        self._config = directory / "envoy.json"
        self._config.write_text(
            json.dumps(config(self.port, self._admin_port, picker_port, workers, mode)),
            encoding="utf-8",
        )
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of its listener."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process."""
        command = [
            str(PROGRAM.absolute()),
            *("--config-path", str(self._config), "--concurrency", str(self._threads)),
            *("--base-id-path", f"{self._config}.id", "--use-dynamic-base-id", "--log-level", "warn"),
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    async def __aenter__(self) -> "Envoy":
        self.start()
        assert self._process is not None
        async with asyncio.timeout(START_SECONDS_MAX), aiohttp.ClientSession() as http:
            while True:
                assert self._process.poll() is None, self.log[-3000:]
                try:
                    async with http.get(f"http://127.0.0.1:{self._admin_port}/ready") as answer:
                        if answer.status == 200:
                            return self
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text(errors="replace")


def by_metadata(addresses: list[tuple[str, int]]) -> dict[str, Any]:
    """Return a cluster of these endpoints, of which the dynamic metadata names one."""
    return {
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": "workers",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(*at)}} for at in addresses]}],
        },
        "load_balancing_policy": {
            "policies": [
                {
                    "typed_extension_config": {
                        "name": "override_host",
                        "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies."
                            "override_host.v3.OverrideHost",
                            "override_host_sources": [
                                {
                                    "metadata": {
                                        "key": "envoy.lb",
                                        "path": [{"key": "x-gateway-destination-endpoint"}],
                                    }
                                }
                            ],
                            "fallback_policy": {
                                "policies": [
                                    {
                                        "typed_extension_config": {
                                            "name": "round_robin",
                                            "typed_config": {
                                                "@type": "type.googleapis.com/envoy.extensions."
                                                "load_balancing_policies.round_robin.v3.RoundRobin"
                                            },
                                        }
                                    }
                                ]
                            },
                        },
                    }
                }
            ]
        },
    }


def config(
    port: int, admin_port: int, picker_port: int, workers: dict[str, Any] | None, mode: dict[str, str] | None
) -> dict[str, Any]:
    """Return the configuration of the documentation, on these ports; `workers` and `mode` replace parts of it."""
    whole: dict[str, Any] = yaml.safe_load(DOCUMENTED.read_text(encoding="utf-8"))
    whole["admin"]["address"] = _address("127.0.0.1", admin_port)
    (listener,) = whole["static_resources"]["listeners"]
    listener["address"] = _address("127.0.0.1", port)
    filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    if mode is not None:
        filters[0]["typed_config"]["processing_mode"] = mode
    named = {cluster["name"]: cluster for cluster in whole["static_resources"]["clusters"]}
    if workers is not None:
        named["workers"] = {"name": "workers", "connect_timeout": "1s", **workers}
    endpoints = named["radixgate"]["load_assignment"]["endpoints"]
    endpoints[0]["lb_endpoints"] = [{"endpoint": {"address": _address("127.0.0.1", picker_port)}}]
    whole["static_resources"]["clusters"] = list(named.values())
    return whole


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}
