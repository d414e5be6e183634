"""`radixgate reload`: makes the gateways on this machine read their settings again."""

from pathlib import Path

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.deployment import STATE, find_deployment
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.runtime.reload import RELOADABLE_SETTINGS, notify_gateways
from gateway.settings.sources import load_settings


def reload(config: ConfigFile = None, set_: Assignments = None) -> None:
    """Make running gateways reload their settings.

    All gateways on this machine with the state directory of these settings (by default that of the one that runs)
    read their settings again. Workers, tenants and keys, models, routing, queueing and certificates change without
    losing a stream; the gateways log which settings need a restart. A file with errors is refused and changes
    nothing.
    """
    if config is not None:
        load_settings(config, assignments=set_ or ())
    settings = find_deployment(config, set_, STATE, must_exist=False).settings
    notified = notify_gateways(Path(settings.state_directory))
    if not notified:
        raise CommandError(f"no gateway serves from the state directory {settings.state_directory}")
    processes = ", ".join(f"process {pid}" for pid in notified)
    print(f"notified {processes} to reload {', '.join(RELOADABLE_SETTINGS)} and certificates")
