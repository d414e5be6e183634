"""`radixgate route`: shows to which worker a running gateway would send a request now, without sending it."""

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gateway.cli.support.admin_access import AdminToken, AdminUrl, find_admin_api
from gateway.cli.support.columns import format_columns
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.options import Assignments, ConfigFile

PROMPT_BYTES_MAX = 200 * 1024


def route(
    prompt: Annotated[
        Path,
        typer.Argument(
            help="File with the JSON of a request or the text of a prompt; - reads standard input."
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="Name of the model, if the file has none.", show_default=False)
    ] = None,
    tenant: Annotated[str, typer.Option(help="Tenant of the request.")] = "default",
    service_class: Annotated[
        str | None,
        typer.Option(
            "--class", help="Service class of the request, as in x-radixgate-class.", show_default=False
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every worker with the terms of its cost.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    url: AdminUrl = None,
    token: AdminToken = None,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Show where a request would be sent now.

    For each worker it shows how much of the prompt is cached there, and why it is the best or not. The command
    calls the admin API of a running gateway; the request is not sent to any worker.
    """
    admin = find_admin_api(config, set_, url, token)
    body = _body(prompt, model)
    api = "completions" if "prompt" in body and "messages" not in body else "chat/completions"
    asked = {"body": body, "tenant": tenant, "api": api, "service_class": service_class}
    found = admin.call("route", asked)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        print("\n".join(_report(found, explain=explain)))
    if not any(worker["rank"] for worker in found["workers"]):
        raise CommandError(f"no worker can take a request for {found['model']}")


def _body(path: Path, model: str | None) -> dict[str, Any]:
    """Return the body of the request from a file or standard input. Raises CommandError."""
    try:
        with sys.stdin.buffer if str(path) == "-" else path.open("rb") as opened:
            text = opened.read(PROMPT_BYTES_MAX + 1)
    except OSError as err:
        raise CommandError(f"{path} cannot be read: {err.strerror}", 2) from err
    if len(text) > PROMPT_BYTES_MAX:
        raise CommandError(f"{path} is larger than {PROMPT_BYTES_MAX} bytes", 2)
    try:
        body = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = None
    if not isinstance(body, dict):
        body = {"messages": [{"role": "user", "content": text.decode("utf-8", "replace")}]}
    if model is not None:
        body["model"] = model
    if not isinstance(body.get("model"), str):
        raise CommandError("--model: the request names no model", 2)
    return body


def _report(found: dict[str, Any], *, explain: bool) -> list[str]:
    """Return the lines of the report."""
    exact = "" if found["exact"] else " (estimated)"
    asked = (
        f"{found['asked']}, answered by {found['model']}"
        if found["asked"] != found["model"]
        else found["model"]
    )
    lines = [
        f"{asked} for {found['tenant']}, class {found['service_class']}: {found['prompt_tokens']} prompt "
        f"tokens{exact} in {found['blocks']} full blocks, about {found['output_tokens']} output tokens "
        f"expected; {found['waiting']} waiting; policy {found['policy']}"
    ]
    workers = found["workers"] if explain else found["workers"][:1]
    head = ("", "worker", "state", "cost ms", "TTFT ms", "cached", "ahead", "streams", "why")
    rows = [
        (
            str(worker["rank"] or "-"),
            f"{worker['prefill_worker']}, {worker['worker']}"
            if worker["prefill_worker"]
            else worker["worker"],
            worker["state"],
            _number(worker["cost_ms"]),
            _number(worker["predicted_ttft_ms"]),
            str(worker["matched_tokens"]),
            str(worker["tokens_queued"] - worker["tokens_computed"]),
            str(worker["streams"]),
            "; ".join(filter(None, (worker["reason"], worker["waits_because"]))),
        )
        for worker in workers
    ]
    lines += format_columns([head, *rows])
    if explain:
        for worker in workers:
            if worker["terms"]:
                terms = ", ".join(_term(name, value) for name, value in worker["terms"].items())
                lines.append(f"{worker['worker']}: {terms}")
    return lines


def _term(name: str, value: float) -> str:
    """Return one term of a cost with its unit; those that are no times have none."""
    unit = " ms" if name.endswith("_ms") else ""
    return f"{name.removesuffix('_ms').replace('_', ' ')} {_number(value)}{unit}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
