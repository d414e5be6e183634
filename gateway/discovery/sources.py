"""The sources that the settings name."""

from collections.abc import Iterable
from pathlib import Path

from gateway.discovery.dns import DnsSource
from gateway.discovery.file import FileSource
from gateway.discovery.kubernetes import KubernetesSource
from gateway.discovery.registry import RedisSource, WorkerRegistry
from gateway.discovery.source import Source
from gateway.settings.workers import DiscoverySettings


def sources_of(settings: Iterable[DiscoverySettings], registry: WorkerRegistry) -> list[Source]:
    """In the order of the settings."""
    return [_source(one, registry) for one in settings]


def _source(one: DiscoverySettings, registry: WorkerRegistry) -> Source:
    match one.kind:
        case "file":
            return FileSource(Path(one.name), one.every_seconds)
        case "dns":
            return DnsSource(one)
        case "kubernetes":
            return KubernetesSource(one)
        case "redis":
            return RedisSource(registry)
