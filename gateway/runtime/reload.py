"""Settings that are read again while the gateway serves: SIGHUP, or `radixgate reload`.

    read the tree, tokenizers, keys  (in a thread; what is wrong is said, and nothing is changed)
      +--> swap all of it at once    (between two steps of the loop: no request sees half of it)

What can be swapped is swapped: workers join and leave as those that are discovered do; keys, tenants and plans of
the file, models, routing and queueing hold from the next request on, and whoever waits for a turn waits by the new
rules. A request goes on with the tenant and the model that it began with. Certificates are read again. What is read
once at the start is said to need a restart.
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
from gateway.dispatch.reservations import QueueRules
from gateway.ledger.ledger import families
from gateway.models.catalogue import Stated
from gateway.process.file_locks import create_locked, lock_file
from gateway.process.secrets import deployment_secret
from gateway.routing.shadow_policy import Shadow
from gateway.runtime.certificates import ServerTls
from gateway.settings.checks import first_problem
from gateway.settings.tree import Settings
from gateway.settings.types import SettingsProblem
from gateway.telemetry import logs
from gateway.tenants.keys import pepper
from gateway.tenants.register import Register
from gateway.tenants.yaml_directory import yaml_directory
from gateway.wiring.dispatch import queue_rules, shadow_of, warn_of_shared_caches
from policies.registry import routing_policy
from policies.routing.protocol import RoutingPolicy

log = logging.getLogger(__name__)

SWAPPED = (
    *("workers", "models", "organisations", "plans", "tenants"),
    *("routing", "queueing", "classes", "telemetry.log_level"),
)
"""What a reload changes; the rest is for the next start, as are `queueing.whole_from_streams` and what makes the
blocks of a model that is there already."""

DIRECTORY = "gateways"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """All that can be wrong with a tree has been tried. `taken`: the tree as it will be in force."""

    new: Settings
    taken: Settings
    models: Stated
    tenants: Register
    routing: RoutingPolicy
    shadow: Shadow | None
    queueing: QueueRules


class Reloader:
    """`read`: builds the tree anew. Raises SettingsProblem."""

    def __init__(
        self, gateway: Gateway, certificates: tuple[ServerTls, ...], read: Callable[[], Settings]
    ) -> None:
        self.settings = gateway.settings
        self._gateway = gateway
        self._certificates = certificates
        self._read = read
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Reload soon; once, however often this is called meanwhile."""
        self._asked.set()

    async def run(self) -> None:
        """Reloads whenever it is asked to."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self.reload()

    async def reload(self) -> list[str]:
        """What has changed and needs a restart, as paths. A tree that is wrong changes nothing."""
        before = self.settings
        try:
            ready = await asyncio.to_thread(self._prepare, before)
        except SettingsProblem as err:
            log.error("the settings are not reloaded, and nothing is changed: %s", err)
            return []
        self._swap(before, ready)
        swapped = sorted(differences(before, ready.taken))
        log.info(
            "the settings are reloaded: %s", ", ".join(swapped) or "nothing that can be swapped has changed"
        )
        late = sorted([*differences(ready.taken, ready.new), *ready.models.late])
        if late:
            log.warning("changed, but in force only after a restart: %s", ", ".join(late))
        return late

    def _prepare(self, before: Settings) -> _Ready:
        """Raises SettingsProblem."""
        new = self._read()
        taken = replace(
            before,
            **{name: getattr(new, name) for name in SWAPPED if "." not in name},
            telemetry=replace(before.telemetry, log_level=new.telemetry.log_level),
        )
        at_once = before.queueing.whole_from_streams
        taken = replace(taken, queueing=replace(taken.queueing, whole_from_streams=at_once))
        ready = _Ready(
            new=new,
            taken=taken,
            models=self._gateway.services.catalogue.read(new.models),
            tenants=yaml_directory(new, pepper(deployment_secret(before))),
            routing=routing_policy(taken.routing.policy, taken.routing.options),
            shadow=shadow_of(taken.routing.shadow),
            queueing=queue_rules(taken, before, self._gateway.services.reservations),
        )
        # What waits for a restart may be what makes the rest right.
        if (problem := first_problem(taken)) is not None:
            raise SettingsProblem(f"without a restart: {problem}")
        return ready

    def _swap(self, before: Settings, ready: _Ready) -> None:
        """Nothing in here may fail."""
        gateway, services, taken = self._gateway, self._gateway.services, ready.taken
        for certificate in self._certificates:
            certificate.renew()
        if taken.telemetry.log_level != before.telemetry.log_level:
            logs.set_up(taken.telemetry.log_level)
        if taken.models != before.models:
            services.catalogue.restate(ready.models)
            for worker in gateway.fleet:
                services.catalogue.found(worker.models)
        if differ(before, taken, "organisations", "plans", "tenants"):
            warn_of_shared_caches(gateway.fleet, taken)
            gateway.records.tenants.restate(ready.tenants)
            if gateway.records.ledger is not None:
                gateway.records.ledger.spent.restate(families(taken))
        if taken.routing != before.routing:
            services.reservations.router.decide_by(
                ready.routing, ready.shadow, taken.routing.prefill_tokens_min
            )
        if differ(before, taken, "queueing", "classes"):
            services.classes.restate(taken.classes)
            services.reservations.restate(ready.queueing)
        if taken.workers != before.workers:
            gateway.discovery.restate(taken.workers)
        self.settings = taken


def differ(one: Settings, other: Settings, *names: str) -> bool:
    """In one of these branches."""
    return any(getattr(one, name) != getattr(other, name) for name in names)


def differences(one: Struct, other: Struct, path: str = "") -> Iterator[str]:
    """Paths of what is not the same; no values, for some are secret."""
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
    """A file with our number, locked for as long as we serve, for `radixgate reload`."""
    directory = state_directory / DIRECTORY
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = directory / str(os.getpid())
    held = create_locked(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        held.close()


def tell(state_directory: Path) -> list[int]:
    """Tells every gateway that serves from this directory to reload; their process ids."""
    told = []
    for file in sorted((state_directory / DIRECTORY).glob("*")):
        if not file.name.isdecimal():
            continue  # One that is just being made.
        try:
            lock_file(file).close()
        except BlockingIOError:
            os.kill(int(file.name), signal.SIGHUP)
            told.append(int(file.name))
        else:
            file.unlink(missing_ok=True)  # Its gateway was killed.
    return told
