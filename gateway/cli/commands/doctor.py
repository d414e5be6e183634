"""`radixgate doctor`: does a running engine offer what a gateway makes use of?"""

import asyncio
import sys
from typing import Annotated, Any

import aiohttp
import typer

from gateway.cli.support.columns import format_columns
from gateway.cli.support.command_error import CommandError
from workers.probing.doctor import BLOCK_SIZES, Diagnosis, On, diagnose
from workers.probing.engine_replies import (
    AGAIN,
    ASKED,
    FIRST,
    KINDS,
    PRIORITY,
    Reply,
    cached_tokens,
    completion,
    kind_of,
    models_of,
)

SECONDS_MAX = 10.0
COMPLETION_SECONDS_MAX = 60.0
BODY_BYTES_MAX = 8 * 1024**2

NAMES = {"sglang": "SGLang", "vllm": "vLLM", "embedded": "radixgate's embedded engine", "openai": "unknown"}


def doctor(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Where the engine listens, as http://10.0.0.1:30000.")
    ],
    kind: Annotated[
        str | None,
        typer.Option(
            help=f"Which engine it is: {', '.join(KINDS)}; by default as it says.", show_default=False
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Sent as a bearer token; `-` reads it from standard input, so that no process list has it.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Look at a running engine: what is it, what does it offer a gateway, which flags are missing?

    Asks its HTTP endpoints and has it complete a short prompt (one token, two or three times). Exit code 0 if
    nothing is missing (what the engine does not tell is listed as unknown), 1 if something is, 2 if it cannot be
    asked.
    """
    if kind is not None and kind not in KINDS:
        raise CommandError(f"--kind: there is no kind {kind!r}; there are {', '.join(KINDS)}", 2)
    where = url.rstrip("/").removesuffix("/v1")
    if not where.startswith(("http://", "https://")):
        raise CommandError(f"URL: {url!r} does not begin with http:// or https://", 2)
    key = sys.stdin.readline().strip() if api_key == "-" else api_key
    found = asyncio.run(_examined(where, kind, key))
    print("\n".join(_report(where, found)))
    return 1 if found.those(On.NO) else 0


async def _examined(where: str, kind: str | None, key: str | None) -> Diagnosis:
    """Raises CommandError."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with aiohttp.ClientSession(headers=headers) as http:
            return await _examine(http, where, kind)
    except (aiohttp.InvalidURL, ValueError) as err:
        raise CommandError(f"URL: {where!r} is none, or the key is none: {err}", 2) from err


async def _examine(http: aiohttp.ClientSession, where: str, kind: str | None) -> Diagnosis:
    try:
        replies = {"v1/models": await _asked(http, f"{where}/v1/models")}
    except (aiohttp.ClientError, TimeoutError) as err:
        raise CommandError(f"{where} does not answer: {str(err) or 'not in time'}", 2) from err
    status = replies["v1/models"].status
    if status in (401, 403):
        raise CommandError(f"{where} refuses us (status {status}): it wants another --api-key", 2)
    models = models_of(replies)
    if not models:
        raise CommandError(
            f"{where} is no engine with an OpenAI API: /v1/models got status {status}, no models", 2
        )
    for path in ASKED:
        replies[path] = await _tried(http, f"{where}/{path}")
    if replies["server_info"].status != 200:
        replies["get_server_info"] = await _tried(http, f"{where}/get_server_info")
    kind = kind or kind_of(replies)
    completions = f"{where}/v1/completions"
    replies[FIRST] = await _tried(http, completions, completion(models[0]))
    if replies[FIRST].status == 200 and not cached_tokens(replies):
        replies[AGAIN] = await _tried(http, completions, completion(models[0]))
    if kind == "vllm":
        # vLLM does not say how it schedules, but some versions refuse a priority that they would not heed.
        replies[PRIORITY] = await _tried(http, completions, completion(models[0], priority=1))
    replies["metrics"] = await _tried(http, f"{where}/metrics")
    return diagnose(replies, kind)


async def _tried(http: aiohttp.ClientSession, url: str, body: Any = None) -> Reply:
    """No answer is an answer too."""
    try:
        return await _asked(http, url, body)
    except (aiohttp.ClientError, TimeoutError):
        return Reply(status=0)


async def _asked(http: aiohttp.ClientSession, url: str, body: Any = None) -> Reply:
    seconds = aiohttp.ClientTimeout(total=SECONDS_MAX if body is None else COMPLETION_SECONDS_MAX)
    method = "GET" if body is None else "POST"
    async with http.request(method, url, json=body, timeout=seconds, allow_redirects=False) as response:
        text = await response.content.read(BODY_BYTES_MAX)
        while len(text) < BODY_BYTES_MAX and (more := await response.content.read(BODY_BYTES_MAX)):
            text += more
        return Reply(status=response.status, text=text.decode(errors="replace"))


def _report(where: str, found: Diagnosis) -> list[str]:
    def told(value: object, unit: str = "") -> str:
        return "unknown" if value is None else f"{value}{unit}"

    lines = [
        where,
        f"  engine      {NAMES[found.kind]}, version {told(found.version)}",
        f"  models      {', '.join(found.models)}",
        f"  page size   {told(found.block_size, ' tokens')}",
        f"  KV capacity {told(found.kv_tokens, ' tokens')}",
        "",
        *format_columns(
            [
                ("feature", "on", "seen", "without it"),
                *((each.name, each.on, each.seen, each.without) for each in found.features),
            ]
        ),
        "",
    ]
    missing, unknown = found.those(On.NO), found.those(On.UNKNOWN)
    if not missing:
        lines.append("Nothing is missing." if not unknown else "Nothing is known to be missing.")
    if flags := [each.add for each in missing if each.add]:
        lines += ["Start it with these flags added:", f"  {' '.join(flags)}"]
    lines += [f"For {each.name}: {each.do}." for each in missing if each.do and not each.add]
    if flags := [each.add for each in unknown if each.add]:
        lines += ["Add these too, unless they are set (it does not tell):", f"  {' '.join(flags)}"]
    if any("tcp://*" in each.add for each in (*missing, *unknown)):
        lines.append("KV events are then sent on every interface: keep their ports inside your network.")
    if found.block_size in BLOCK_SIZES:
        lines.append(
            f"In radixgate's settings, models[].block_size has to be a multiple of {found.block_size}."
        )
    return lines
