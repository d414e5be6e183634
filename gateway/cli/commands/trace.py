"""`radixgate trace`: shows one finished request, by its id or by the id of its trace."""

import re
from typing import Annotated

import typer

from gateway.cli.commands.requests import AsJson, print_request
from gateway.cli.support.admin_access import AdminToken, AdminUrl, find_admin_api
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.options import Assignments, ConfigFile

TRACE_ID = re.compile(r"[0-9a-f]{32}")


def trace(
    identity: Annotated[
        str, typer.Argument(metavar="ID", help="Id of a trace (32 hex digits), or of a request (`req-...`).")
    ],
    as_json: AsJson = False,
    url: AdminUrl = None,
    token: AdminToken = None,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Show the request of a trace: its steps, attempts, wait and ranking, as the gateways have kept them."""
    admin = find_admin_api(config, set_, url, token)
    if TRACE_ID.fullmatch(identity):
        found = admin.call(f"requests?limit=1&trace={identity}")["data"]
        if not found:
            raise CommandError("no gateway keeps a request of this trace")
        identity = found[0]["id"]
    print_request(admin, identity, as_json=as_json)
