"""From the settings of a worker, wherever they were found, to the worker that the fleet has."""

from gateway.dispatch.event_sources import event_sources
from gateway.dispatch.fleet import Worker
from gateway.settings.workers import Worker as WorkerSettings
from radix_cache.match import WorkerId
from workers.adapter import TlsFiles, WorkerTarget
from workers.adapters.registry import adapters


def worker_of(settings: WorkerSettings) -> Worker:
    """Raises OSError for certificates that cannot be used."""
    identity, tls = WorkerId(settings.id), settings.tls
    target = WorkerTarget(
        id=identity,
        url=settings.url.rstrip("/").removesuffix("/v1"),
        api_key=settings.api_key.reveal() if settings.api_key is not None else None,
        headers={name: value.reveal() for name, value in settings.headers.items()},
        tls=TlsFiles(ca=tls.ca, certificate=tls.certificate, key=tls.key) if tls is not None else None,
    )
    return Worker(
        id=identity,
        kind=settings.kind,
        adapter=adapters()[settings.kind](target),
        models=frozenset(settings.models),
        models_fixed=bool(settings.models),
        told=event_sources(settings),
    )
