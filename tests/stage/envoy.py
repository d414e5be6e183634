"""A real Envoy that asks a gateway for the worker of each request, and carries the request there."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import aiohttp

from gateway.demo.demo_processes import free_port

PROGRAM = Path(".tools/envoy/envoy")
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
        self.port = free_port(0)
        self._admin_port = free_port(0)
        self._log = directory / "envoy.log"
        self._config = directory / "envoy.json"
        self._config.write_text(
            json.dumps(config(self.port, self._admin_port, picker_port, workers or by_header(), mode)),
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


def by_header() -> dict[str, Any]:
    """Return a cluster whose endpoint is the one that the header names."""
    return {
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {
            "use_http_header": True,
            "http_header_name": "x-gateway-destination-endpoint",
        },
    }


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
    port: int, admin_port: int, picker_port: int, workers: dict[str, Any], mode: dict[str, str] | None
) -> dict[str, Any]:
    """Return Envoy's configuration: a listener with the ext_proc filter, the workers, and the gateway."""
    filters = "type.googleapis.com/envoy.extensions.filters"
    return {
        "admin": {"address": _address("127.0.0.1", admin_port)},
        "static_resources": {
            "listeners": [
                {
                    "address": _address("127.0.0.1", port),
                    "filter_chains": [
                        {
                            "filters": [
                                {
                                    "name": "http",
                                    "typed_config": {
                                        "@type": f"{filters}.network.http_connection_manager.v3."
                                        "HttpConnectionManager",
                                        "stat_prefix": "http",
                                        "use_remote_address": True,
                                        "stream_idle_timeout": "0s",
                                        "route_config": _routes(),
                                        "http_filters": [
                                            {
                                                "name": "endpoint-picker",
                                                "typed_config": {
                                                    "@type": f"{filters}.http.ext_proc.v3.ExternalProcessor",
                                                    "grpc_service": {
                                                        "envoy_grpc": {"cluster_name": "radixgate"},
                                                        "timeout": "0s",
                                                    },
                                                    "processing_mode": mode or FULL_DUPLEX,
                                                    "metadata_options": {
                                                        "receiving_namespaces": {"untyped": ["envoy.lb"]},
                                                        "forwarding_namespaces": {
                                                            "untyped": ["envoy.lb.subset_hint"]
                                                        },
                                                    },
                                                },
                                            },
                                            {
                                                "name": "router",
                                                "typed_config": {"@type": f"{filters}.http.router.v3.Router"},
                                            },
                                        ],
                                    },
                                }
                            ]
                        }
                    ],
                }
            ],
            "clusters": [
                {"name": "workers", "connect_timeout": "1s", **workers},
                {
                    "name": "radixgate",
                    "type": "STATIC",
                    "connect_timeout": "1s",
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3."
                            "HttpProtocolOptions",
                            "explicit_http_config": {"http2_protocol_options": {}},
                        }
                    },
                    "load_assignment": {
                        "cluster_name": "radixgate",
                        "endpoints": [
                            {"lb_endpoints": [{"endpoint": {"address": _address("127.0.0.1", picker_port)}}]}
                        ],
                    },
                },
            ],
        },
    }


def _routes() -> dict[str, Any]:
    route = {"match": {"prefix": "/"}, "route": {"cluster": "workers", "timeout": "0s"}}
    return {"name": "routes", "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}
