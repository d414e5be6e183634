"""Warnings about settings that are valid: keys that have expired, variables that may be misspelt."""

import re
from collections.abc import Iterator, Mapping, Set
from functools import cache

from gateway.settings.environment import ENVIRONMENT_PREFIX
from gateway.settings.error_messages import setting_paths
from gateway.settings.tree import Settings

_PREFIX_START = ENVIRONMENT_PREFIX.removesuffix("_")
# Kubernetes sets such variables for the services of a namespace, and services are named after the release.
_KUBERNETES_NAME = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
_KUBERNETES_VALUE = re.compile(r"(tcp|udp|sctp)://")


def expired_keys(settings: Settings, now: float) -> Iterator[str]:
    """Yield a warning for each API key that has expired, as `$.path: reason`; `now` is Unix time."""
    for at, tenant in enumerate(settings.tenants):
        for number, key in enumerate(tenant.keys):
            if key.expires is not None and key.expires.seconds <= now:
                path = f"$.tenants[{at}].keys[{number}].expires"
                yield f"{path}: {key.expires} has passed; the key is refused"


def misspelt_variables(environment: Mapping[str, str], referred: Set[str]) -> Iterator[str]:
    """Yield a warning for each environment variable that looks like a misspelt setting.

    Variables in `referred` are skipped: settings refer to them by `${env:NAME}`.
    """
    for name in sorted(environment):
        if not name.startswith(_PREFIX_START) or name.startswith(ENVIRONMENT_PREFIX) or name in referred:
            continue
        if _KUBERNETES_NAME.search(name) or _KUBERNETES_VALUE.match(environment[name]):
            continue
        meant = _settings_by_letters().get(name.removeprefix(_PREFIX_START).replace("_", "").lower())
        hint = f"names of settings begin with {ENVIRONMENT_PREFIX}"
        if meant is not None:
            hint = f"write {ENVIRONMENT_PREFIX}{meant.replace('.', '__').upper()}"
        yield f"environment {name}: not a setting; {hint}"


@cache
def _settings_by_letters() -> Mapping[str, str]:
    """Return the paths of all settings by their letters, without dots and underscores."""
    return {name.replace(".", "").replace("_", ""): name for name in setting_paths(Settings)}
