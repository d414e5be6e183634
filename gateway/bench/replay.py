"""A trace played against a running server in open loop: each request is sent when it is due, whatever is under way.

What the client itself takes is measured too: how late each request left, which is where a loop that is too slow, or
a machine that is too small, shows.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from gateway.bench.client import Endpoint, stream_completion
from gateway.bench.results import RequestResult
from gateway.bench.trace_prompts import TracePrompts
from gateway.bench.trace_tenants import Caller, assign_callers, caller_of
from policies.simulation.trace import TraceRequest

PREPARED_SECONDS = 1.0
"""A prompt is made up before it is due, so that making it delays none."""

TOO_MANY = "client_in_flight_max"
"""The code of what was not sent because too many were under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTarget:
    """`url`: with or without /v1. `body`: fields that all requests have."""

    url: str
    model: str
    endpoint: Endpoint
    body: dict[str, Any]
    seconds_max: float
    in_flight_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """`late_seconds`: of each request, from when it was due to when it was sent."""

    results: list[RequestResult]
    late_seconds: list[float]
    seconds: float


async def replay(
    requests: Sequence[TraceRequest],
    target: BenchTarget,
    callers: Sequence[Caller],
    prompts: TracePrompts,
    done: Callable[[], None],
) -> ReplayResult:
    """Sends all of it and waits for the answers. `done` is called after each."""
    played = assign_callers(requests, callers)
    results: list[RequestResult] = []
    late: list[float] = []
    running: set[asyncio.Task[None]] = set()
    connector = aiohttp.TCPConnector(limit=0)
    # `seconds_max` bounds an answer; a session has a bound of its own, which is shorter.
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as http:

        async def one(caller: Caller, text: str, request: TraceRequest) -> None:
            try:
                body = _body(target, text, request.output_tokens)
                result = await stream_completion(
                    http,
                    target.url,
                    caller.key,
                    caller.name,
                    body,
                    endpoint=target.endpoint,
                    headers=caller.headers,
                    seconds_max=target.seconds_max,
                )
                results.append(replace(result, text=""))
            finally:
                done()

        started = time.perf_counter()
        try:
            for request in requests:
                due = started + request.at
                await _until(due - PREPARED_SECONDS)
                caller, text = caller_of(request, callers, played), prompts.text(request)
                await _until(due)
                if len(running) >= target.in_flight_max:
                    results.append(
                        RequestResult(tenant=caller.name, sent_at=time.perf_counter(), error=TOO_MANY)
                    )
                    done()
                    continue
                late.append(time.perf_counter() - due)
                task = asyncio.create_task(one(caller, text, request))
                running.add(task)
                task.add_done_callback(running.discard)
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return ReplayResult(results=results, late_seconds=late, seconds=time.perf_counter() - started)


def _body(target: BenchTarget, text: str, output_tokens: int) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": target.model, "max_tokens": output_tokens, **target.body}
    if target.endpoint is Endpoint.COMPLETIONS:
        return {**asked, "prompt": text}
    return {**asked, "messages": [{"role": "user", "content": text}]}


async def _until(moment: float) -> None:
    """Also gives way if it is past: whatever comes in is read meanwhile."""
    await asyncio.sleep(max(0.0, moment - time.perf_counter()))
