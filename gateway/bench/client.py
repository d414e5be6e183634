"""One streamed completion, measured at the client."""

import asyncio
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import aiohttp
import orjson

from gateway.bench.results import Result

REQUEST_SECONDS_MAX = 120.0


class Endpoint(StrEnum):
    """What is asked for."""

    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self is Endpoint.CHAT else "/v1/completions"


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    key: str,
    tenant: str,
    body: dict[str, Any],
    *,
    endpoint: Endpoint = Endpoint.CHAT,
    headers: Mapping[str, str] | None = None,
    seconds_max: float = REQUEST_SECONDS_MAX,
) -> Result:
    """Sends a completion with `stream` and usage, and reads it to its end. Errors are in the result.

    `url`: with or without /v1. `key`: may be empty, for servers that ask for none.
    """
    sent_at = time.perf_counter()
    wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
    first_at = last_at = None
    gaps: list[float] = []
    text: list[str] = []
    usage: dict[str, Any] = {}
    error: str | None = None
    try:
        async with asyncio.timeout(seconds_max):
            async with session.post(
                f"{url.rstrip('/').removesuffix('/v1')}{endpoint.path}",
                data=orjson.dumps(wanted),
                headers={
                    "Content-Type": "application/json",
                    **({"Authorization": f"Bearer {key}"} if key else {}),
                    **(headers or {}),
                },
            ) as response:
                if response.status != 200:
                    error = _code(await response.read(), response.status)
                async for line in response.content:
                    if error is not None or not line.startswith(b"data:") or line.startswith(b"data: [DONE]"):
                        continue
                    frame = orjson.loads(line[5:])
                    if "error" in frame:
                        error = str(frame["error"].get("code"))
                        continue
                    usage = frame.get("usage") or usage
                    if delta := _said(frame):
                        now = time.perf_counter()
                        if last_at is not None:
                            gaps.append(now - last_at)
                        first_at, last_at = first_at or now, now
                        text.append(delta)
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, AttributeError, TypeError) as err:
        # Whatever a server sends that is no stream of chunks is an error of this request.
        error = error or type(err).__name__
    return Result(
        tenant=tenant,
        sent_at=sent_at,
        first_at=first_at,
        last_at=last_at,
        gaps=tuple(gaps),
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        output_tokens=usage.get("completion_tokens", 0),
        error=error if error is not None or usage else "no_usage",
        text="".join(text),
    )


def _said(frame: dict[str, Any]) -> str:
    """The text of a chunk, thoughts included; empty where it has none."""
    choices = frame.get("choices")
    if not choices:
        return ""
    delta = choices[0].get("delta")
    if delta is None:
        return str(choices[0].get("text") or "")
    return str(delta.get("content") or delta.get("reasoning_content") or "")


def _code(body: bytes, status: int) -> str:
    try:
        return str(orjson.loads(body)["error"]["code"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return str(status)
