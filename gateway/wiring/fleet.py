"""The fleet and its workers, made from the settings."""

from urllib.parse import urlsplit

from gateway.fleet.fleet import Fleet
from gateway.fleet.provider import Provider
from gateway.fleet.worker import Worker
from gateway.kv_index.feed_sources import event_sources, load_sources
from gateway.models.model_prices import prices_from
from gateway.settings.tree import Settings
from gateway.settings.types import SettingsProblem
from gateway.settings.workers import AUTO_KIND, ProviderSettings, WorkerSettings
from gateway.tenants.limits import limits_at
from policies.speeds import LearntSpeed
from radix_cache.match import WorkerId
from workers.adapter import TlsFiles, WorkerTarget
from workers.adapters.provider import ProviderAdapter
from workers.adapters.registry import adapters
from workers.worker import Role


def fleet_of(settings: Settings) -> Fleet:
    """Return a fleet of the workers in the settings that name their kind. Raises SettingsProblem."""
    known = ((at, worker) for at, worker in enumerate(settings.workers) if worker.kind != AUTO_KIND)
    fleet = Fleet([_static_worker(at, worker) for at, worker in known])
    warn_of_shared_caches(fleet, settings)
    return fleet


def worker_of(settings: WorkerSettings) -> Worker:
    """Return a worker of which nothing but its kind is known yet.

    Raises what its adapter raises: OSError for certificates, ValueError for a package that cannot be loaded.
    """
    identity, target = WorkerId(settings.id), target_of(settings)
    rated = settings.prefill_tokens_per_second
    adapter, provider, models = adapters()[settings.kind](target), settings.provider, settings.models
    if provider is not None:
        models = tuple(provider.models)
        adapter = ProviderAdapter(adapter, {m: there.name or m for m, there in provider.models.items()})
    return Worker(
        id=identity,
        kind=settings.kind,
        adapter=adapter,
        models=frozenset(models),
        models_fixed=bool(models),
        role=Role(settings.role),
        event_sources=event_sources(settings) if provider is None else (),
        load_sources=load_sources(settings) if provider is None else (),
        provider=_provider(provider) if provider is not None else None,
        address=_address(settings.url),
        known_slots=settings.slots,
        learnt=LearntSpeed(rated_ms_per_token=1000 / rated if rated is not None else None),
        priority=settings.priority == "on" or (settings.priority, settings.kind) == ("auto", "embedded"),
        names_rank=settings.dp_rank == "auto",
    )


def _address(url: str) -> str:
    """Return host and port of a URL."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def target_of(settings: WorkerSettings) -> WorkerTarget:
    """Return the address of a worker, and the credentials for it."""
    tls = settings.tls
    return WorkerTarget(
        id=WorkerId(settings.id),
        url=settings.url.rstrip("/").removesuffix("/v1"),
        api_key=settings.api_key.reveal() if settings.api_key is not None else None,
        headers={name: value.reveal() for name, value in settings.headers.items()},
        tls=TlsFiles(ca=tls.ca, certificate=tls.certificate, key=tls.key) if tls is not None else None,
    )


def warn_of_shared_caches(fleet: Fleet, settings: Settings) -> None:
    """Log the workers that cannot keep the caches of tenants apart, if any tenant is to be isolated."""
    if any(tenant.isolation.mode != "shared" for tenant in settings.tenants):
        fleet.warn_of_shared_caches()


def _static_worker(at: int, settings: WorkerSettings) -> Worker:
    """Return the worker at this position of the settings. Raises SettingsProblem."""
    try:
        return worker_of(settings)
    except OSError as err:
        raise SettingsProblem(
            f"$.workers[{at}].tls: the files cannot be used: {err.strerror or err}"
        ) from err
    except ValueError as err:
        raise SettingsProblem(f"$.workers[{at}]: {err}") from err


def _provider(settings: ProviderSettings) -> Provider:
    prices = {model: prices_from(there.prices) for model, there in settings.models.items()}
    return Provider(
        prices={model: price for model, price in prices.items() if price is not None},
        after_seconds=settings.after_ms / 1000 if settings.after_ms is not None else None,
        rest_seconds_max=settings.rest_seconds_max,
        limits=limits_at(0.0, settings.limits, settings.concurrency),
    )
