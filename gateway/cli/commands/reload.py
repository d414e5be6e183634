"""`radixgate reload`: a gateway on this machine reads its settings again."""

from pathlib import Path

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.runtime.reload import RELOADABLE_SETTINGS, notify_gateways
from gateway.settings.sources import load_settings


def reload(config: ConfigFile = None, set_: Assignments = None) -> None:
    """Have the gateways that serve from this file's state directory read their settings again.

    Workers, tenants and keys, models, routing, queueing and certificates are swapped without losing a stream;
    what needs a restart stands in their logs.
    A file that is wrong is refused here, and changes nothing.
    """
    settings = load_settings(config, assignments=set_ or ()).settings
    notified = notify_gateways(Path(settings.state_directory))
    if not notified:
        raise CommandError(f"no gateway serves from the state directory {settings.state_directory}")
    print(
        f"told {', '.join(f'process {pid}' for pid in notified)}: {', '.join(RELOADABLE_SETTINGS)} and certificates are swapped"
    )
