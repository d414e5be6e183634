"""`radixgate reload`: a gateway on this machine reads its settings again."""

from pathlib import Path

from gateway.cli.support.failure import Failure
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.runtime.reload import SWAPPED, tell
from gateway.settings.sources import load


def reload(config: ConfigFile = None, set_: Assignments = None) -> None:
    """Have the gateways that serve from this file's state directory read their settings again.

    Workers, tenants and keys, models, routing, queueing and certificates are swapped without losing a stream;
    what needs a restart stands in their logs.
    A file that is wrong is refused here, and changes nothing.
    """
    settings = load(config, assignments=set_ or ()).settings
    told = tell(Path(settings.state_directory))
    if not told:
        raise Failure(f"no gateway serves from the state directory {settings.state_directory}")
    print(
        f"told {', '.join(f'process {pid}' for pid in told)}: {', '.join(SWAPPED)} and certificates are swapped"
    )
