"""Settings that are read again while the gateway serves: SIGHUP, or `radixgate reload`.

A new tree is built as at the start; one that is wrong changes nothing. What can be swapped is swapped: workers join
and leave as those that are discovered do, requests are routed by the new policy from the next one on, certificates
are read again. What is read once at the start is said to need a restart.
"""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gateway.app import Gateway
from gateway.certificates import ServerTls
from gateway.locks import locked, locked_from_the_start
from gateway.parts.dispatch import shadow_of
from gateway.settings.tree import Settings
from gateway.settings.types import SettingsProblem
from gateway.telemetry import logs
from policies.registry import routing_policy

log = logging.getLogger(__name__)

SWAPPED = ("workers", "routing", "telemetry.log_level")
"""What a reload changes; the rest is for the next start."""

DIRECTORY = "gateways"


class Reloader:
    """`read`: builds the tree anew. Raises SettingsProblem."""

    def __init__(
        self, gateway: Gateway, certificates: tuple[ServerTls, ...], read: Callable[[], Settings]
    ) -> None:
        self.settings = gateway.settings
        self._gateway = gateway
        self._certificates = certificates
        self._read = read

    def reload(self) -> list[str]:
        """What has changed and needs a restart, as paths. A tree that is wrong changes nothing."""
        try:
            new = self._read()
        except SettingsProblem as err:
            log.error("the settings are not reloaded, and nothing is changed: %s", err)
            return []
        for certificate in self._certificates:
            certificate.renew()
        changed = sorted(differences(self.settings, new))
        if new.routing != self.settings.routing:
            self._gateway.services.reservations.router.decide_by(
                routing_policy(new.routing.policy, new.routing.options),
                shadow_of(new.routing.shadow),
                new.routing.prefill_tokens_min,
            )
        if new.workers != self.settings.workers:
            self._gateway.discovery.restate(new.workers)
        if new.telemetry.log_level != self.settings.telemetry.log_level:
            logs.set_up(new.telemetry.log_level)
        # What was not swapped is still to be told of the next time.
        telemetry = msgspec.structs.replace(self.settings.telemetry, log_level=new.telemetry.log_level)
        self.settings = msgspec.structs.replace(
            self.settings, workers=new.workers, routing=new.routing, telemetry=telemetry
        )
        late = [path for path in changed if not path.startswith(SWAPPED)]
        swapped = [path for path in changed if path.startswith(SWAPPED)]
        log.info(
            "the settings are reloaded: %s", ", ".join(swapped) or "nothing that can be swapped has changed"
        )
        if late:
            log.warning("changed, but in force only after a restart: %s", ", ".join(late))
        return late


def differences(one: msgspec.Struct, other: msgspec.Struct, path: str = "") -> Iterator[str]:
    """Paths of what is not the same; no values, for some are secret."""
    for name in one.__struct_fields__:
        before, after = getattr(one, name), getattr(other, name)
        if before == after:
            continue
        if isinstance(before, msgspec.Struct) and type(before) is type(after):
            yield from differences(before, after, f"{path}{name}.")
        else:
            yield f"{path}{name}"


@contextmanager
def found_by_pid(state_directory: Path) -> Iterator[None]:
    """A file with our number, locked for as long as we serve, for `radixgate reload`."""
    directory = state_directory / DIRECTORY
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = directory / str(os.getpid())
    held = locked_from_the_start(file)
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
            locked(file).close()
        except BlockingIOError:
            os.kill(int(file.name), signal.SIGHUP)
            told.append(int(file.name))
        else:
            file.unlink(missing_ok=True)  # Its gateway was killed.
    return told
