"""Replays a trace against a running server in open loop: each request is sent when due, even if others still run.

The delay with which each request was sent is measured too; it shows an overloaded client machine.
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

PREPARATION_SECONDS = 1.0
"""Prompts are generated this long before their requests are due, so that generation does not delay them."""

TOO_MANY = "client_in_flight_max"
"""The error code of requests that were not sent because too many were running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTarget:
    """The server to measure, and how to call it."""

    url: str
    """Address of the server, with or without /v1."""

    model: str
    endpoint: Endpoint
    body: dict[str, Any]
    """Fields of every request."""

    seconds_max: float
    """Longest time for one answer."""

    in_flight_max: int
    """Largest number of requests at the same time; further ones are not sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The results of a replay."""

    results: list[RequestResult]
    late_seconds: list[float]
    """Delay of each request: from the time it was due to the time it was sent."""

    seconds: float
    """Duration of the replay."""


async def replay(
    requests: Sequence[TraceRequest],
    target: BenchTarget,
    callers: Sequence[Caller],
    prompts: TracePrompts,
    done: Callable[[], None],
) -> ReplayResult:
    """Send all requests and wait for the answers; call `done` after each answer."""
    assigned = assign_callers(requests, callers)
    results: list[RequestResult] = []
    late: list[float] = []
    running: set[asyncio.Task[None]] = set()
    connector = aiohttp.TCPConnector(limit=0)
    # The session's own timeout is shorter than `seconds_max`, so it is turned off.
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as http:

        async def send(caller: Caller, text: str, request: TraceRequest) -> None:
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
                await _sleep_until(due - PREPARATION_SECONDS)
                caller, text = caller_of(request, callers, assigned), prompts.text(request)
                await _sleep_until(due)
                if len(running) >= target.in_flight_max:
                    results.append(
                        RequestResult(tenant=caller.name, sent_at=time.perf_counter(), error=TOO_MANY)
                    )
                    done()
                    continue
                late.append(time.perf_counter() - due)
                task = asyncio.create_task(send(caller, text, request))
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


async def _sleep_until(moment: float) -> None:
    """Sleep until a time. If it has passed, still yield to the event loop, which can then read answers."""
    await asyncio.sleep(max(0.0, moment - time.perf_counter()))
