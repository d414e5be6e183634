"""`radixgate queue`: shows the requests that wait in all running gateways, and the share of each tenant."""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer

from gateway.cli.support.admin_access import AdminToken, AdminUrl, find_admin_api
from gateway.cli.support.columns import format_columns
from gateway.cli.support.options import Assignments, ConfigFile

LINES = 20
TENANTS = ("tenant", "weight", "waiting", "recent units", "share", "due")
REQUESTS = ("tenant", "class", "waited", "target", "uncached", "cached", "cost", "why")


def queue(
    lines: Annotated[
        int, typer.Option(help="Number of waiting requests to show for each queue.", min=0)
    ] = LINES,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    url: AdminUrl = None,
    token: AdminToken = None,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Show waiting requests and tenants' shares.

    For all gateways together, the command shows which requests wait, for how long and why, and the share of work
    that each tenant received. Work is measured in cost units and decays by half in 30 seconds. Tenants with
    requests waiting in the last minute are entitled to a share. Evenness is Jain's index of their received work
    over their weights.
    """
    admin = find_admin_api(config, set_, url, token)
    found = admin.call("queue")
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        print("\n".join(_report(found, lines)))


def _report(found: dict[str, Any], lines: int) -> Iterator[str]:
    """Yield the lines of the report."""
    queue = "all gateways share one queue" if found["shared"] else "each gateway has its own queue"
    answered = f"{len(found['answered'])} of {found['gateways']} gateways answered"
    yield f"{queue}; {answered}; {found['preemptions']} batch requests were preempted"
    for one in found["queues"]:
        yield ""
        yield (
            f"{one['queue']}: {one['waiting']} waiting with {one['waiting_tokens']} tokens, "
            f"{one['drain_units_per_second']:.0f} units/s, evenness {one['evenness']:.3f}"
        )
        if one["tenants"]:
            yield from format_columns([TENANTS, *map(_tenant, one["tenants"])])
        if one["requests"] and lines:
            yield from format_columns([REQUESTS, *map(_request, one["requests"][:lines])])
        if one["waiting"] > lines:
            yield f"and {one['waiting'] - lines} more"


def _tenant(one: dict[str, Any]) -> tuple[str, ...]:
    due = f"{one['due']:.1%}" if one["due"] else "-"
    units = f"{one['units']:.0f}"
    return one["tenant"], f"{one['weight']:g}", str(one["waiting"]), units, f"{one['share']:.1%}", due


def _request(one: dict[str, Any]) -> tuple[str, ...]:
    target = one["target_in_seconds"]
    return (
        one["tenant"],
        one["class"],
        f"{one['waited_seconds']:.1f} s",
        "-" if target is None else f"in {target:.1f} s" if target >= 0 else f"missed by {-target:.1f} s",
        str(one["uncached_tokens"]),
        str(one["cached_tokens"]),
        f"{one['cost']:.0f}",
        one["why"],
    )
