"""`radixgate check-config` and `radixgate explain-config`."""

from gateway.cli.options import Assignments, ConfigFile
from gateway.settings_sources import load


def check_config(config: ConfigFile = None, set_: Assignments = None) -> None:
    """Check the settings: exit code 0 if they are right, 2 and one line with the path if not."""
    settings = load(config, assignments=set_ or ()).settings
    workers, tenants = len(settings.workers), len(settings.tenants)
    print(f"The settings are right: {workers} workers, {tenants} tenants, policy {settings.routing.policy}.")


def explain_config(config: ConfigFile = None, set_: Assignments = None) -> None:
    """Print every setting with its value and where it came from. Secrets are masked."""
    leaves = list(load(config, assignments=set_ or ()).leaves())
    widths = [max(len(leaf[column]) for leaf in leaves) for column in (0, 1)]
    for path, value, source in leaves:
        print(f"{path:<{widths[0]}}  {value:<{min(widths[1], 40)}}  {source}")
