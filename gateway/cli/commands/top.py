"""`radixgate top`: the state of all running gateways, drawn again every few seconds."""

import shutil
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer

from gateway.cli.support.admin_access import AdminToken, AdminUrl, find_admin_api
from gateway.cli.support.columns import format_columns
from gateway.cli.support.options import Assignments, ConfigFile

HOME_AND_CLEAR = "\x1b[H\x1b[2J"
WORKERS = (
    "worker",
    "state",
    "streams",
    "queued tokens",
    "KV",
    "req/s",
    "hits",
    "expected",
    "TTFT ms",
    "failures",
)
TENANTS = ("tenant", "req/s", "requests", "refused", "errors", "prompt tokens", "hits", "TTFT ms")
ORDER = {"down": 0, "suspect": 1, "draining": 2}


def top(
    every: Annotated[float, typer.Option(help="Seconds between updates.", min=0.5)] = 2.0,
    lines: Annotated[
        int | None,
        typer.Option(help="Number of lines of each table.", min=1, show_default="as fit on the screen"),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, once.")] = False,
    url: AdminUrl = None,
    token: AdminToken = None,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Show gateways, workers, tenants and the queue, live; end with Ctrl-C."""
    admin = find_admin_api(config, set_, url, token)
    while True:
        state = admin.call("overview")
        if as_json:
            print(msgspec.json.format(msgspec.json.encode(state), indent=2).decode())
            return
        live = not once and sys.stdout.isatty()
        picture = "\n".join(picture_of(state, lines or _lines_that_fit()))
        print(f"{HOME_AND_CLEAR if live else ''}{picture}", flush=True)
        if not live:
            return
        time.sleep(every)


def picture_of(state: dict[str, Any], lines: int) -> Iterator[str]:
    """Yield the lines of one picture of the overview, with so many lines for each table."""
    minute = state["all"]["minute"]
    gateways = len(state["gateways"])
    up = sum(worker["health"] == "up" for worker in state["workers"])
    waiting = sum(queue["waiting"] for queue in state["queue"]["queues"])
    ready = "ready" if state["ready"] else "draining" if state["draining"] else "NOT READY"
    redis = "" if state["redis"] == "shared" else "; Redis is AWAY"
    yield (
        f"radixgate {state['version']}  {ready}{redis}; {gateways} gateway{'' if gateways == 1 else 's'}, {up} of "
        f"{len(state['workers'])} workers up; policy {state['policy']}"
    )
    yield (
        f"{minute['requests'] / 60:.1f} requests/s, {_share(minute['hit_ratio'])} of prompt tokens from cache, "
        f"TTFT p50 {_number(state['all']['ttft_ms_p50'])} ms; {waiting} waiting"
    )
    workers = sorted(state["workers"], key=lambda w: (ORDER.get(w["health"], 3), -w["streams"], w["id"]))
    yield ""
    yield from format_columns([WORKERS, *map(_worker, workers[:lines])])
    if len(workers) > lines:
        yield f"and {len(workers) - lines} more"
    tenants = sorted(
        state["tenants"], key=lambda t: (-t["minute"]["requests"], -t["total"]["requests"], t["id"])
    )
    if tenants:
        yield ""
        yield from format_columns([TENANTS, *map(_tenant, tenants[:lines])])
        if len(tenants) > lines:
            yield f"and {len(tenants) - lines} more"
    for queue in state["queue"]["queues"]:
        if queue["waiting"]:
            first = queue["requests"][0] if queue["requests"] else None
            why = f"; the first for {first['waited_seconds']:.1f} s: {first['why']}" if first else ""
            yield ""
            yield f"{queue['queue']}: {queue['waiting']} waiting with {queue['waiting_tokens']} tokens{why}"


def _worker(one: dict[str, Any]) -> tuple[str, ...]:
    kv_max, total = one["kv_tokens_max"], one["total"]
    expected = total["predicted_tokens"] / total["prompt_tokens"] if total["prompt_tokens"] else None
    return (
        *(one["id"], one["health"], str(one["streams"]), str(one["tokens_queued"])),
        _share(one["kv_tokens"] / kv_max if kv_max else None),
        f"{one['minute']['requests'] / 60:.1f}",
        *(_share(total["hit_ratio"]), _share(expected), _number(one["ttft_ms_p50"]), str(one["failures"])),
    )


def _tenant(one: dict[str, Any]) -> tuple[str, ...]:
    total = one["total"]
    return (
        one["id"],
        f"{one['minute']['requests'] / 60:.1f}",
        *(str(total[name]) for name in ("requests", "refused", "errors", "prompt_tokens")),
        *(_share(total["hit_ratio"]), _number(one["ttft_ms_p50"])),
    )


def _share(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _lines_that_fit() -> int:
    return max(3, (shutil.get_terminal_size().lines - 10) // 2)
