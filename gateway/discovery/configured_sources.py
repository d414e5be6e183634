"""Builds the sources of workers that the settings name."""

from collections.abc import Iterable
from pathlib import Path

from gateway.discovery.dns import DnsSource
from gateway.discovery.file import FileSource
from gateway.discovery.kubernetes import KubernetesSource
from gateway.discovery.source import WorkerSource
from gateway.discovery.worker_registry import RedisSource, WorkerRegistry
from gateway.settings.workers import DiscoverySettings


def build_sources(settings: Iterable[DiscoverySettings], registry: WorkerRegistry) -> list[WorkerSource]:
    """Return the sources in the order of the settings."""
    return [_build(one, registry) for one in settings]


def _build(one: DiscoverySettings, registry: WorkerRegistry) -> WorkerSource:
    match one.kind:
        case "file":
            return FileSource(Path(one.name), one.every_seconds)
        case "dns":
            return DnsSource(one)
        case "kubernetes":
            return KubernetesSource(one)
        case "redis":
            return RedisSource(registry)
