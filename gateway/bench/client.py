"""Sends one streamed completion and measures it at the client."""

import asyncio
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import aiohttp
import msgspec

from gateway.bench.results import RequestResult

REQUEST_SECONDS_MAX = 120.0


class Endpoint(StrEnum):
    """An endpoint of the OpenAI API that generates text."""

    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        """The path of the endpoint."""
        return "/v1/chat/completions" if self is Endpoint.CHAT else "/v1/completions"


async def stream_completion(
    session: aiohttp.ClientSession,
    url: str,
    key: str,
    tenant: str,
    body: dict[str, Any],
    *,
    endpoint: Endpoint = Endpoint.CHAT,
    headers: Mapping[str, str] | None = None,
    seconds_max: float = REQUEST_SECONDS_MAX,
) -> RequestResult:
    """Send a completion request with `stream` and usage, and read the answer to its end.

    Args:
        session: the HTTP client.
        url: address of the server, with or without /v1.
        key: API key; empty for servers that require none.
        tenant: name of the tenant, for the result.
        body: fields of the request.
        endpoint: the endpoint to call.
        headers: further headers.
        seconds_max: longest time for the whole answer.

    Returns:
        The measured request. Errors do not raise, but are in the result.
    """
    measured = _MeasuredStream()
    streamed_body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        async with asyncio.timeout(seconds_max):
            async with session.post(
                f"{url.rstrip('/').removesuffix('/v1')}{endpoint.path}",
                data=msgspec.json.encode(streamed_body),
                headers={
                    "Content-Type": "application/json",
                    **({"Authorization": f"Bearer {key}"} if key else {}),
                    **(headers or {}),
                },
                # A redirected POST mostly becomes a GET.
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    measured.error = _error_code(await response.read(), str(response.status))
                async for line in response.content:
                    measured.take(line)
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, AttributeError, TypeError) as err:
        # If the server sends something other than a stream of chunks, this request has failed.
        measured.error = measured.error or type(err).__name__
    return measured.result(tenant)


class _MeasuredStream:
    """One stream as the client has seen it so far, from the moment its request is sent."""

    def __init__(self) -> None:
        self.error: str | None = None
        self._sent_at = time.perf_counter()
        self._first_at: float | None = None
        self._last_at: float | None = None
        self._gaps: list[float] = []
        self._text: list[str] = []
        self._usage: object = None
        self._done = False

    def take(self, line: bytes) -> None:
        """Take the next line of the stream; after an error the rest is ignored."""
        if self.error is not None or not line.startswith(b"data:"):
            return
        if line[5:].strip() == b"[DONE]":
            self._done = True
            return
        frame = msgspec.json.decode(line[5:])
        if "error" in frame:
            self.error = _error_name(frame, "stream_error")
            return
        self._usage = frame.get("usage") or self._usage
        if delta := _chunk_text(frame):
            now = time.perf_counter()
            if self._last_at is not None:
                self._gaps.append(now - self._last_at)
            self._first_at, self._last_at = self._first_at or now, now
            self._text.append(delta)

    def result(self, tenant: str) -> RequestResult:
        """Return the measured request; a stream without usage is an error."""
        usage, error = self._usage, self.error
        prompt_tokens, output_tokens = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        if error is None and not prompt_tokens and not output_tokens:
            error = "no_usage" if self._done else "stream_cut" if self._text else "no_stream"
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        return RequestResult(
            tenant=tenant,
            sent_at=self._sent_at,
            first_at=self._first_at,
            last_at=self._last_at,
            gaps=tuple(self._gaps),
            prompt_tokens=prompt_tokens,
            cached_tokens=_count(details, "cached_tokens"),
            output_tokens=output_tokens,
            error=error,
            text="".join(self._text),
        )


def _count(counts: object, name: str) -> int:
    """Return a number of tokens of the usage; 0 where the server gives none."""
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and value > 0 else 0


def _chunk_text(frame: dict[str, Any]) -> str:
    """Return the text of a chunk, reasoning included; empty if the chunk has no text."""
    choices = frame.get("choices")
    if not choices:
        return ""
    delta = choices[0].get("delta")
    if delta is None:
        return str(choices[0].get("text") or "")
    # SGLang calls reasoning `reasoning_content`, vLLM calls it `reasoning`.
    return str(delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or "")


def _error_code(body: bytes, status: str) -> str:
    try:
        return _error_name(msgspec.json.decode(body), status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return status


def _error_name(answer: object, default: str) -> str:
    """Return the code of an error in the OpenAI format, else its type, since the code is often null."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return default
    return str(error.get("code") or error.get("type") or default)
