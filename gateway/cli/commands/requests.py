"""`radixgate requests`: shows finished requests of all running gateways, and why one was slow or failed."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import msgspec
import typer

from gateway.cli.support.admin_access import AdminApi, AdminToken, AdminUrl, find_admin_api
from gateway.cli.support.columns import format_columns
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.cli.support.request_report import milliseconds, report
from gateway.explorer.request_query import LIMIT, LIMIT_MAX

app = typer.Typer(
    help="Show the latest finished requests that the running gateways keep: failed, slow, refused and all "
    "others. Prompts and answers are never stored.",
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
HEAD = (
    "time",
    "request",
    "tenant",
    "model",
    "code",
    "ms",
    "queue ms",
    "TTFT ms",
    "prompt",
    "cached",
    "worker",
    "",
)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.", show_default=False)] = None,
    worker: Annotated[str | None, typer.Option(help="Only this worker.", show_default=False)] = None,
    code: Annotated[
        str | None, typer.Option(help="Only this error code; `ok`: no error.", show_default=False)
    ] = None,
    slow: Annotated[bool, typer.Option("--slow", help="Only slow requests.")] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only failed requests; with --slow, failed and slow ones.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Largest number of requests.", min=1, max=LIMIT_MAX)] = LIMIT,
    as_json: AsJson = False,
    url: AdminUrl = None,
    token: AdminToken = None,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """List finished requests of all gateways, the latest first."""
    asked = {"tenant": tenant, "model": model, "worker": worker, "code": code, "limit": limit}
    asked |= {"slow": "true" if slow else None, "failed": "true" if failed else None}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    admin = find_admin_api(config, set_, url, token)
    found = admin.call(f"requests?{query}")
    if as_json:
        _print_json(found)
    else:
        print("\n".join(_table(found["data"])))


@app.command()
def show(
    request: Annotated[str, typer.Argument(help="Id of the request: `x-request-id` of its answer.")],
    as_json: AsJson = False,
    url: AdminUrl = None,
    token: AdminToken = None,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Show one request: its steps, why it waited, the ranking of the workers as it was then, its limits."""
    admin = find_admin_api(config, set_, url, token)
    print_request(admin, request, as_json=as_json)


def print_request(admin: AdminApi, request: str, *, as_json: bool) -> None:
    """Print one request. Raises CommandError."""
    found = admin.call(f"requests/{quote(request, safe='')}")
    if as_json:
        _print_json(found)
    else:
        print("\n".join(report(found)))


def _table(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the list."""
    rows = [
        (
            datetime.fromtimestamp(one["at"], UTC).strftime("%H:%M:%S"),
            one["id"],
            one["tenant"] or "-",
            one["model"] or "-",
            one["code"],
            milliseconds(one["ms"]),
            milliseconds(one["wait"]["ms"] if one["wait"] else None),
            milliseconds(one["ttft_ms"]),
            one["prompt_tokens"],
            "-" if one["cached_tokens"] is None else str(one["cached_tokens"]),
            one["worker"] or "-",
            "slow" if one["slow"] else "",
        )
        for one in found
    ]
    yield from format_columns([HEAD, *rows])


def _print_json(value: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
