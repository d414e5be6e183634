"""The slots of workers as a running gateway knows them: from its settings, or from what their engines report."""

from gateway.cli.support.admin_access import find_admin_api
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.options import Assignments, ConfigFile


def reported_slots(config: ConfigFile, assignments: Assignments) -> dict[tuple[str, str], int]:
    """Return the slots by id and address of the worker; empty if no gateway, or not only one, runs here.

    The address is a part of the key, since the gateway that answers may be another deployment's.
    """
    try:
        workers = find_admin_api(config, assignments, None, None).call("workers").get("data", [])
    except CommandError:
        return {}
    return {(one["id"], one["url"]): one["slots"] for one in workers if one.get("slots")}
