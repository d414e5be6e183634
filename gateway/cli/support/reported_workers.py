"""The workers as a running gateway reports them: their state, and what their engines report."""

from typing import Any

from gateway.cli.support.admin_access import find_admin_api
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.options import Assignments, ConfigFile


def reported_workers(config: ConfigFile, assignments: Assignments) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the workers by id and address, as in the admin API; empty if no gateway, or not only one, runs here.

    The address is a part of the key, since the gateway that answers may be another deployment's.
    """
    try:
        workers = find_admin_api(config, assignments, None, None).call("workers").get("data", [])
    except CommandError:
        return {}
    return {(one["id"], one["url"]): one for one in workers}
