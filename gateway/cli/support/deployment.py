"""Finds the deployment that a command works on: named on the command line, or that of the gateway that runs here.

--set or RADIXGATE__... name the state directory of a gateway that runs here -------> the settings of that gateway
else --config, --set or RADIXGATE__... name a database, Redis, secret or directory -> these settings alone
else one gateway runs on this machine ---------------------------------------------> the settings of that gateway
else there is a state directory here -----------------------------------------------> the default settings
else ------------------------------------------------------------------------------> an error, no new deployment
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.process.running_gateways import GatewayInfo, running_gateways
from gateway.process.secrets import FILE_NAME, secret_file
from gateway.settings.database_address import sqlite_file
from gateway.settings.environment import ENVIRONMENT_PREFIX
from gateway.settings.sources import ENVIRONMENT_SOURCE, LoadedSettings, load_settings, without_credentials
from gateway.settings.tree import Settings

STATE_DIRECTORY = "state_directory"

STATE = (STATE_DIRECTORY, "database")
"""Settings that name the deployment of a command for tenants, keys and usage."""

REDIS = (STATE_DIRECTORY, "redis")
"""Settings that name the deployment of a command for workers and the prefix index."""

SECRET = (STATE_DIRECTORY, "deployment_secret")
"""Settings that name the deployment of a command that only needs the secret."""

ADMIN = ("admin",)
"""Settings that name the deployment of a command that calls a gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentAccess:
    """The settings of a deployment, and its gateway if that was found on this machine."""

    settings: Settings
    gateway: GatewayInfo | None = None

    @property
    def admin_url(self) -> str | None:
        """The URL of the running gateway's listener for operators; None where no running gateway was found."""
        return self.gateway.admin_url if self.gateway is not None else None


def find_deployment(
    config: ConfigFile, assignments: Assignments, naming: Sequence[str], *, must_exist: bool = True
) -> DeploymentAccess:
    """Return the deployment that the options name, else the one on this machine; its settings may be incomplete.

    A gateway that runs here and is chosen by its state directory has the settings of its start; those given here
    replace them one by one.

    Args:
        config: the settings file, if one is given.
        assignments: values of --set.
        naming: branches of the settings that name a deployment, if one of them is given.
        must_exist: whether a state directory has to exist where nothing names a deployment.

    Raises:
        SettingsProblem: the settings are wrong.
        CommandError: no deployment is named, and there is none here, or there are several.
    """
    given = list(assignments or ())
    loaded = load_settings(config, assignments=given, complete=False)
    running = {(each.config, each.state_directory): each for each in running_gateways()}
    if config is None and (STATE_DIRECTORY,) in loaded.sources:
        directory = str(Path(loaded.settings.state_directory).absolute())
        for gateway in running.values():
            if gateway.state_directory == directory:
                return DeploymentAccess(settings=_settings_of(gateway, given, naming), gateway=gateway)
    if config is not None or any(set(location[:1]) & set(naming) for location in loaded.sources):
        return DeploymentAccess(settings=loaded.settings)
    if len(running) > 1:
        choices = " or ".join(_choice(each, naming) for each in running.values())
        raise CommandError(f"several gateways run on this machine: choose one by adding {choices}", 2)
    for gateway in running.values():
        return DeploymentAccess(settings=_settings_of(gateway, given, naming), gateway=gateway)
    if must_exist:
        _check_existence(loaded)
    return DeploymentAccess(settings=loaded.settings)


def print_deployment(deployment: DeploymentAccess) -> None:
    """Print on standard error which database and which secret a command works with."""
    settings = deployment.settings
    file = sqlite_file(settings.database.url, Path(settings.state_directory))
    database = without_credentials(settings.database.url) if file is None else str(file.absolute())
    secret = secret_file(settings)
    named = str(secret.absolute()) if secret is not None else "from the settings"
    found = f", gateway process {deployment.gateway.pid}" if deployment.gateway is not None else ""
    print(f"deployment: database {database}, secret {named}{found}", file=sys.stderr)


def _settings_of(gateway: GatewayInfo, given: list[str], naming: Sequence[str]) -> Settings:
    """Return the settings of a running gateway.

    Raises CommandError if some are in environment variables that this process lacks; to call the gateway
    (`ADMIN`), only those of its listener are needed.
    """
    config = Path(gateway.config) if gateway.config is not None else None
    own = [*gateway.assignments, f"{STATE_DIRECTORY}={gateway.state_directory}", *given]
    loaded = load_settings(config, assignments=own, complete=False)
    here = {source for source in loaded.sources.values() if source.startswith(ENVIRONMENT_SOURCE)}
    missing = sorted(set(gateway.variables) - {source.removeprefix(ENVIRONMENT_SOURCE) for source in here})
    if naming == ADMIN:
        missing = [name for name in missing if name.startswith(f"{ENVIRONMENT_PREFIX}ADMIN")]
    if missing:
        raise CommandError(
            f"the gateway of process {gateway.pid} has settings from environment variables that are not set here: "
            f"{', '.join(missing)}",
            2,
        )
    return loaded.settings


def _check_existence(loaded: LoadedSettings) -> None:
    """Raise CommandError if the state directory of these settings has never been used."""
    settings = loaded.settings
    state = Path(settings.state_directory)
    database = sqlite_file(settings.database.url, state)
    if not (state / FILE_NAME).exists() and not (database is not None and database.exists()):
        raise CommandError(
            f"no gateway runs on this machine, and {state.absolute()} is not the state directory of one: name the "
            "settings of the gateway with --config FILE",
            2,
        )


def _choice(gateway: GatewayInfo, naming: Sequence[str]) -> str:
    """Return the options that choose this gateway for a command, to be copied, and the gateway's process."""
    options = [] if gateway.config is None else ["--config", gateway.config]
    if naming == ADMIN:
        options += ["--url", gateway.admin_url]
    elif gateway.config is None or gateway.assignments:
        # The file alone lacks what the gateway was given by --set, which may be secret and is not printed.
        options = ["--set", f"{STATE_DIRECTORY}={gateway.state_directory}"]
    return f"`{shlex.join(options)}` (process {gateway.pid})"
