"""Reading the settings again while the gateway serves: on SIGHUP, or with `radixgate reload`.

    read settings, tokenizers, keys  (in a thread; a problem is logged, and nothing is changed)
      +--> swap all of them at once  (between two steps of the event loop: every request gets all or none of them)

What can be swapped is swapped: workers join and leave as discovered workers do; keys, tenants and plans of the
file, models, routing and queueing hold from the next request on, and requests that wait in a queue wait by the new
rules. A request finishes with the tenant and the model that it began with. Certificates are read again. Settings
that are read only once, at the start, are logged as needing a restart.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gateway.app import Gateway
from gateway.dispatch.dispatch import QueueRules
from gateway.ledger.ledger import families
from gateway.models.catalogue import CatalogueContents
from gateway.process.file_locks import create_locked, lock_file
from gateway.process.secrets import deployment_secret
from gateway.routing.shadow_policy import ShadowPolicy
from gateway.runtime.certificates import ServerTls
from gateway.settings.checks.tree_checks import first_problem
from gateway.settings.sources import LoadedSettings
from gateway.settings.tree import Settings
from gateway.settings.types import SettingsProblem
from gateway.telemetry import logs
from gateway.tenants.keys import pepper
from gateway.tenants.tenant_register import TenantRegister
from gateway.tenants.yaml_directory import register_from_settings
from gateway.wiring.dispatch_rules import queue_rules, shadow_of
from gateway.wiring.fleet import warn_of_shared_caches
from policies.registry import routing_policy
from policies.routing.protocol import RoutingPolicy

log = logging.getLogger(__name__)

RELOADABLE_PARTS = (
    *("workers", "models", "organisations", "plans", "tenants"),
    *("routing", "queueing", "classes"),
)
"""The parts of the settings that a reload changes; `with_reloadable` has the exceptions within them."""

RELOADABLE_SETTINGS = (*RELOADABLE_PARTS, "telemetry.log_level")
"""The settings that a reload changes, as `radixgate reload` names them."""

DIRECTORY = "gateways"
"""Directory below the state directory with one file for each serving process, named by its process id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """Settings that were read and checked completely, with the parts that are built from them."""

    new: LoadedSettings  # as they were read
    taken: Settings  # as they will be in force: without what needs a restart
    models: CatalogueContents
    tenants: TenantRegister
    routing: RoutingPolicy
    shadow: ShadowPolicy | None
    queueing: QueueRules


class Reloader:
    """Swaps the settings of a running gateway; `read` reads them again and raises SettingsProblem."""

    def __init__(
        self, gateway: Gateway, certificates: tuple[ServerTls, ...], read: Callable[[], LoadedSettings]
    ) -> None:
        self.settings = gateway.settings
        self._gateway = gateway
        self._certificates = certificates
        self._read = read
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Request a reload; several requests before it starts are one reload."""
        self._asked.set()

    async def run(self) -> None:
        """Reload whenever it is requested, until this coroutine is cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self.reload()

    async def reload(self) -> list[str]:
        """Read the settings and swap them; return the paths of changed settings that need a restart.

        Settings with a problem change nothing.
        """
        before = self.settings
        try:
            prepared = await asyncio.to_thread(self._prepare, before)
        except SettingsProblem as err:
            log.error("the settings are not reloaded, and nothing is changed: %s", err)
            return []
        self._swap(before, prepared)
        swapped = sorted(differences(before, prepared.taken))
        log.info("the settings are reloaded: %s", ", ".join(swapped) or "no reloadable setting has changed")
        late = sorted([*differences(prepared.taken, prepared.new.settings), *prepared.models.restart_paths])
        taken = LoadedSettings(settings=prepared.taken, sources=prepared.new.sources)
        self._gateway.in_force.replace(taken, late)
        if late:
            log.warning("changed settings that need a restart: %s", ", ".join(late))
        return late

    def _prepare(self, before: Settings) -> _Prepared:
        """Read the settings and build what will be swapped in. Raises SettingsProblem."""
        loaded = self._read()
        new = loaded.settings
        taken = with_reloadable(before, new)
        prepared = _Prepared(
            new=loaded,
            taken=taken,
            models=self._gateway.services.catalogue.prepare(new.models),
            tenants=register_from_settings(new, pepper(deployment_secret(before))),
            routing=routing_policy(taken.routing.policy, taken.routing.options),
            shadow=shadow_of(taken.routing.shadow),
            queueing=queue_rules(taken, before, self._gateway.services.dispatch.rooms),
        )
        # The settings that wait for a restart may be the ones that make the others valid.
        if (problem := first_problem(taken)) is not None:
            raise SettingsProblem(f"without a restart: {problem}")
        return prepared

    def _swap(self, before: Settings, prepared: _Prepared) -> None:
        """Put the prepared settings in force. Nothing in here may fail."""
        gateway, services, taken = self._gateway, self._gateway.services, prepared.taken
        for certificate in self._certificates:
            certificate.renew()
        if taken.telemetry.log_level != before.telemetry.log_level:
            logs.configure_logging(taken.telemetry.log_level, before.telemetry.log_format)
        if taken.models != before.models:
            services.catalogue.replace_contents(prepared.models)
            for worker in gateway.fleet:
                services.catalogue.add_reported(worker.models, worker.report.parents)
        if differ(before, taken, "organisations", "plans", "tenants"):
            warn_of_shared_caches(gateway.fleet, taken)
            directory = gateway.records.objects or gateway.records.tenants
            directory.reconfigure(prepared.tenants)
            if gateway.records.ledger is not None:
                gateway.records.ledger.account_usage.reconfigure(families(taken))
        if taken.routing != before.routing:
            services.dispatch.router.reconfigure(
                prepared.routing, prepared.shadow, taken.routing.prefill_tokens_min
            )
        if differ(before, taken, "queueing", "classes"):
            services.classes.reconfigure(taken.classes)
            services.dispatch.reconfigure(prepared.queueing)
        if taken.workers != before.workers:
            gateway.discovery.reconfigure(taken.workers)
        self.settings = taken


def with_reloadable(before: Settings, new: Settings) -> Settings:
    """Return the settings in force after a reload: those of `before`, with what a reload may change from `new`.

    Everything else takes effect at the next start. So do the tokenizer and the block size of a model that is
    already served: see `Catalogue.prepare`.
    """
    taken = replace(before, **{name: getattr(new, name) for name in RELOADABLE_PARTS})
    return replace(
        taken,
        queueing=replace(
            new.queueing,
            whole_from_streams=before.queueing.whole_from_streams,
            tenant_shards=before.queueing.tenant_shards,
        ),
        telemetry=replace(before.telemetry, log_level=new.telemetry.log_level),
    )


def differ(one: Settings, other: Settings, *names: str) -> bool:
    """Return whether the two trees differ in one of the named branches."""
    return any(getattr(one, name) != getattr(other, name) for name in names)


def differences(one: Struct, other: Struct, path: str = "") -> Iterator[str]:
    """Yield the paths of all settings that differ between two trees; no values, for some are secret."""
    for name in one.__struct_fields__:
        before, after = getattr(one, name), getattr(other, name)
        if before == after:
            continue
        if isinstance(before, Struct) and type(before) is type(after):
            yield from differences(before, after, f"{path}{name}.")
        else:
            yield f"{path}{name}"


@contextmanager
def registered_for_reload(state_directory: Path) -> Iterator[None]:
    """Keep a locked file named by this process id while the gateway serves, so that `radixgate reload` finds it."""
    directory = state_directory / DIRECTORY
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = directory / str(os.getpid())
    held = create_locked(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        held.close()


def notify_gateways(state_directory: Path) -> list[int]:
    """Send SIGHUP to every gateway that serves from this state directory, and return their process ids."""
    notified = []
    for file in sorted((state_directory / DIRECTORY).glob("*")):
        if not file.name.isdecimal():
            continue  # A file that is just being created.
        try:
            lock_file(file).close()
        except BlockingIOError:
            os.kill(int(file.name), signal.SIGHUP)
            notified.append(int(file.name))
        else:
            file.unlink(missing_ok=True)  # Its gateway was killed.
    return notified
