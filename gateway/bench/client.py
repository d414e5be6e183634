"""One streamed chat completion, measured at the client."""

import asyncio
import time
from typing import Any

import aiohttp
import orjson

from gateway.bench.results import Result

REQUEST_SECONDS_MAX = 120.0


async def chat(
    session: aiohttp.ClientSession, url: str, key: str, tenant: str, body: dict[str, Any]
) -> Result:
    """Sends a chat completion with `stream` and usage, and reads it to its end. Errors are in the result."""
    sent_at = time.perf_counter()
    wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
    first_at = last_at = None
    gaps: list[float] = []
    text: list[str] = []
    usage: dict[str, Any] = {}
    error: str | None = None
    try:
        async with asyncio.timeout(REQUEST_SECONDS_MAX):
            async with session.post(
                f"{url}/v1/chat/completions",
                data=orjson.dumps(wanted),
                headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
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
                    delta = frame["choices"][0]["delta"].get("content") if frame["choices"] else None
                    if delta:
                        now = time.perf_counter()
                        if last_at is not None:
                            gaps.append(now - last_at)
                        first_at, last_at = first_at or now, now
                        text.append(delta)
    except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as err:
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


def _code(body: bytes, status: int) -> str:
    try:
        return str(orjson.loads(body)["error"]["code"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return str(status)
