"""`radixgate doctor`: checks that a running engine offers what a gateway makes use of."""

import asyncio
import sys
from typing import Annotated, Any

import aiohttp
import msgspec
import typer

from gateway.cli.support.admin_access import connection_problem
from gateway.cli.support.columns import format_columns
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.found_workers import ENGINE_NAMES
from workers.probing.doctor import BLOCK_SIZES, Diagnosis, FeatureState, diagnose
from workers.probing.engine_replies import (
    FIRST_COMPLETION,
    KINDS,
    PRIORITY_COMPLETION,
    PROBED_PATHS,
    REPEATED_COMPLETION,
    EngineReply,
    completion_body,
    kind_of,
    models_of,
    most_cached_tokens,
)

SECONDS_MAX = 10.0
COMPLETION_SECONDS_MAX = 60.0
BODY_BYTES_MAX = 8 * 1024**2

NAMES = {**ENGINE_NAMES, "openai": "unknown"}


def doctor(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Address of the engine, such as http://10.0.0.1:30000.")
    ],
    kind: Annotated[
        str | None,
        typer.Option(
            help=f"Kind of the engine: {', '.join(KINDS)}; by default what its answers show.",
            show_default=False,
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Key to send as a bearer token; `-` reads it from standard input, which hides it from "
            "process lists.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a report.")] = False,
) -> int:
    """Check which features an engine offers.

    The report shows the kind of the engine, the features that a gateway makes use of, and missing flags. The
    engine's HTTP endpoints are called, and it completes a short prompt two or three times (one token each). Exit
    code 0 if nothing is missing (features that the engine does not report are listed as unknown), 1 if something is
    missing, 2 if the engine cannot be reached.
    """
    if kind is not None and kind not in KINDS:
        raise CommandError(f"--kind: there is no kind {kind!r}; there are {', '.join(KINDS)}", 2)
    where = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
    if not where.startswith(("http://", "https://")):
        raise CommandError(f"URL: {url!r} does not begin with http:// or https://", 2)
    key = sys.stdin.readline().strip() if api_key == "-" else api_key
    diagnosis = asyncio.run(_connect_and_examine(where, kind, key))
    if json:
        found = {"url": where, **msgspec.to_builtins(diagnosis)}
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        print("\n".join(_report(where, diagnosis)))
    return 1 if diagnosis.in_state(FeatureState.NO) else 0


async def _connect_and_examine(where: str, kind: str | None, key: str | None) -> Diagnosis:
    """Examine the engine at an address. Raises CommandError if the address or the key is not valid."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with aiohttp.ClientSession(headers=headers) as http:
            return await _examine(http, where, kind)
    except (aiohttp.InvalidURL, ValueError) as err:
        raise CommandError(f"URL: {where!r} or the key is not valid: {err}", 2) from err


async def _examine(http: aiohttp.ClientSession, where: str, kind: str | None) -> Diagnosis:
    """Call the endpoints of the engine. Raises CommandError if it is not reachable or has no OpenAI API."""
    try:
        replies = {"v1/models": await _request(http, f"{where}/v1/models")}
    except (aiohttp.ClientError, TimeoutError) as err:
        raise CommandError(f"{where} does not answer: {connection_problem(err)}", 2) from err
    status = replies["v1/models"].status
    if status in (401, 403):
        raise CommandError(f"{where} refuses the key (status {status}): give the right one with --api-key", 2)
    models = models_of(replies)
    if not models:
        raise CommandError(
            f"{where} is not an engine with an OpenAI API: /v1/models answered status {status}, without models",
            2,
        )
    for path in PROBED_PATHS:
        replies[path] = await _try_request(http, f"{where}/{path}")
    if replies["server_info"].status != 200:
        replies["get_server_info"] = await _try_request(http, f"{where}/get_server_info")
    kind = kind or kind_of(replies)
    completions = f"{where}/v1/completions"
    replies[FIRST_COMPLETION] = await _try_request(http, completions, completion_body(models[0]))
    if replies[FIRST_COMPLETION].status == 200 and not most_cached_tokens(replies):
        replies[REPEATED_COMPLETION] = await _try_request(http, completions, completion_body(models[0]))
    if kind == "vllm":
        # vLLM does not report how it schedules, but some versions refuse a priority that they would ignore.
        replies[PRIORITY_COMPLETION] = await _try_request(
            http, completions, completion_body(models[0], priority=1)
        )
    replies["metrics"] = await _try_request(http, f"{where}/metrics")
    return diagnose(replies, kind)


async def _try_request(http: aiohttp.ClientSession, url: str, body: Any = None) -> EngineReply:
    """Return the reply, or one of status 0 if the engine does not answer."""
    try:
        return await _request(http, url, body)
    except (aiohttp.ClientError, TimeoutError):
        return EngineReply(status=0)


async def _request(http: aiohttp.ClientSession, url: str, body: Any = None) -> EngineReply:
    seconds = aiohttp.ClientTimeout(total=SECONDS_MAX if body is None else COMPLETION_SECONDS_MAX)
    method = "GET" if body is None else "POST"
    async with http.request(method, url, json=body, timeout=seconds, allow_redirects=False) as response:
        text = await response.content.read(BODY_BYTES_MAX)
        while len(text) < BODY_BYTES_MAX and (more := await response.content.read(BODY_BYTES_MAX)):
            text += more
        return EngineReply(status=response.status, text=text.decode(errors="replace"))


def _report(where: str, found: Diagnosis) -> list[str]:
    """Return the lines of the report."""

    def or_unknown(value: object, unit: str = "") -> str:
        return "unknown" if value is None else f"{value}{unit}"

    lines = [
        where,
        f"  engine      {NAMES[found.kind]}, version {or_unknown(found.version)}",
        f"  models      {', '.join(found.models)}",
        f"  page size   {or_unknown(found.block_size, ' tokens')}",
        f"  KV capacity {or_unknown(found.kv_tokens, ' tokens')}",
        "",
        *format_columns(
            [
                ("feature", "on", "seen", "without it"),
                *((each.name, each.state, each.evidence, each.consequence) for each in found.features),
            ]
        ),
        "",
    ]
    missing, unknown = found.in_state(FeatureState.NO), found.in_state(FeatureState.UNKNOWN)
    if not missing:
        lines.append("Nothing is missing." if not unknown else "Nothing is known to be missing.")
    if flags := [each.flags for each in missing if each.flags]:
        lines += ["Start the engine with these flags added:", f"  {' '.join(flags)}"]
    lines += [f"For {each.name}: {each.advice}." for each in missing if each.advice and not each.flags]
    if flags := [each.flags for each in unknown if each.flags]:
        lines += [
            "Add these flags too, unless they are set (the engine does not report it):",
            f"  {' '.join(flags)}",
        ]
    if any("tcp://*" in each.flags for each in (*missing, *unknown)):
        lines.append("KV events are then published on all addresses: keep their ports inside your network.")
    if found.block_size in BLOCK_SIZES:
        lines.append(
            f"In the settings of radixgate, models[].block_size must be a multiple of {found.block_size}."
        )
    return lines
