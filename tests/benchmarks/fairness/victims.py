"""Victims of a flood at real gateways before simulated engines as processes, beside the same traffic simulated.

The victims alone, and the whole mix, are sent at the same time to two deployments, so that a busy machine disturbs
both alike: what counts is the ratio. Engines, traffic and targets are SLOWER times as slow as in the simulated
mixes, in the simulation of this table too. Prompts are token ids, so that encoding them does not take the CPU.

The row `busy` is a lower bound for every gateway that keeps all workers busy while requests wait
(policies/simulation/least_when_busy.py). Ours may be below it, since it keeps a worker open beside a flood.
"""

import asyncio
import sys
import time
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec

from gateway.bench.client import Endpoint, stream_completion
from gateway.bench.results import RequestResult, percentile
from gateway.tenants.keys import NewKey, new_key, pepper
from policies.service_class import CHAT
from policies.simulation.contenders import contender
from policies.simulation.engines.step_time import StepTime
from policies.simulation.known_blocks import BlockPaths
from policies.simulation.least_when_busy import least_ttft_when_busy
from policies.simulation.scenario import Scenario
from policies.simulation.simulation import Simulation
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest
from policies.simulation.turns.queue_rule import RELEASE_WINDOW_TOKENS, QueueRule
from tests.benchmarks.fairness.mixes import Mix, chats, flood, long_beside_chats, long_prompts
from tests.benchmarks.fairness.simulated import KV_TOKENS, WORKERS
from tests.benchmarks.routing.mock_worker import MODEL, slowed
from tests.benchmarks.routing.validate import word_tokenizer
from tests.stage.processes import GatewayProcess, Process
from tests.stage.valkey import ValkeyServer

SECRET = "a secret of the bench"
SLOWER = 2
"""More would make traffic too sparse for what a gateway remembers of the last seconds."""

MIXES = {"flood": flood, "chats": chats, "long": long_prompts, "long-chats": long_beside_chats}
"""The mixes with one tenant that crowds."""

LATE_SECONDS = 0.5
"""How old the simulated reports of loads are, where several gateways share the traffic."""

ALONE, BESIDE = "alone", "beside the others"
PERCENTS = (50, 95, 99)


async def runs(directory: Path, mix: str, seconds: float, seed: int = 0, gateways: int = 1) -> dict[str, Any]:
    """Return the victims' figures by measurement, and in it of the victims alone and beside the others."""
    of = _slowed(MIXES[mix](seconds, seed))
    traces = {ALONE: list(of.victims), BESIDE: of.all}
    victims = {one.tenant for one in of.victims}
    sent = await asyncio.gather(
        *(_sent(directory / name, of, trace, gateways) for name, trace in traces.items())
    )
    simulated = {name: _simulated(of, trace, victims, gateways) for name, trace in traces.items()}
    return {
        "busy": {name: _figures(_busy(trace, victims)) for name, trace in traces.items()},
        "simulated": {name: _figures(ttft) for name, ttft in simulated.items()},
        "processes": {name: _measured(results) for name, results in zip(traces, sent, strict=True)},
    }


def _slowed(mix: Mix) -> Mix:
    def later(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
        return [msgspec.structs.replace(one, at=SLOWER * one.at) for one in requests]

    return Mix(name=mix.name, victims=later(mix.victims), others=later(mix.others), weights=mix.weights)


def _busy(trace: list[TraceRequest], victims: set[str]) -> list[float]:
    """Return the lower bound of each victim's TTFT, in seconds, while no worker is idle beside waiting requests."""
    least = least_ttft_when_busy(trace, slowed(StepTime(), SLOWER), workers=WORKERS)
    return [ttft for ttft, one in zip(least, trace, strict=True) if one.tenant in victims]


def _simulated(mix: Mix, trace: list[TraceRequest], victims: set[str], gateways: int) -> list[float]:
    """Return the victims' TTFT in seconds."""
    scenario = Scenario(
        workers=WORKERS,
        kv_tokens=KV_TOKENS,
        times=slowed(StepTime(), SLOWER),
        window_tokens=RELEASE_WINDOW_TOKENS,
        turns=QueueRule(weights=mix.weights),
        classes={CHAT.name: msgspec.structs.replace(CHAT, ttft_seconds=SLOWER * CHAT.ttft_seconds)},
        gateways=gateways,
        sync_seconds=LATE_SECONDS if gateways > 1 else 0.0,
    )
    result = Simulation(trace, contender("cost", {}), scenario, paths=BlockPaths(trace)).run()
    return [one.ttft for one in result.outcomes if one.tenant in victims and one.ttft is not None]


async def _sent(
    directory: Path, mix: Mix, trace: Sequence[TraceRequest], gateways: int
) -> list[RequestResult]:
    """Send the requests to a deployment of their own; return the victims' results."""
    tokenizer = word_tokenizer(directory / "tokenizer")
    keys = {one.tenant: new_key(pepper(SECRET.encode())) for one in mix.all}
    mock = (sys.executable, "-m", "tests.benchmarks.routing.mock_worker", "--tokens-per-word", "1")
    options = ("--kv-tokens", str(KV_TOKENS), "--slower", str(SLOWER))
    async with AsyncExitStack() as stack:
        engines = [Process(f"engine-{at}", directory, (*mock, *options)) for at in range(WORKERS)]
        for engine in engines:
            stack.push_async_callback(engine.stop)
            await engine.start()
        valkey = ValkeyServer(directory)
        stack.callback(valkey.kill)
        valkey.start()
        settings = _settings(engines, valkey, tokenizer, keys)
        started = [GatewayProcess(f"gateway-{at}", directory, settings) for at in range(gateways)]
        for gateway in started:
            stack.push_async_callback(gateway.stop)
        await asyncio.gather(*(gateway.start() for gateway in started))
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        for gateway in started:
            await gateway.all_up(http)
        urls = [f"http://{gateway.host}:{gateway.port}" for gateway in started]
        return await _victims(http, urls, {name: key.text for name, key in keys.items()}, mix, trace)


def _settings(
    engines: Sequence[Process], valkey: ValkeyServer, tokenizer: Path, keys: Mapping[str, NewKey]
) -> dict[str, Any]:
    return {
        "redis": {"url": valkey.url, "timeout_ms": 1000},
        "database": {"url": "none"},
        "deployment_secret": SECRET,
        "workers": [{"id": engine.name, "kind": "sglang", "url": engine.url} for engine in engines],
        "models": [{"name": MODEL, "tokenizer": str(tokenizer), "block_size": BLOCK_TOKENS}],
        "classes": {CHAT.name: {"ttft_ms": 1000 * SLOWER * CHAT.ttft_seconds}},
        "queueing": {"waiting_seconds_max": 600, "waiting_requests_max": 10_000},
        # The simulated engine sends nothing between the first token and the last.
        "requests": {"idle_seconds_max": 600, "first_token_seconds_max": 600},
        "plans": [{"name": "plan"}],
        "tenants": [
            {
                "id": name,
                "plan": "plan",
                "isolation": {"mode": "shared"},
                "keys": [{"id": key.id, "hash": key.hash}],
            }
            for name, key in keys.items()
        ],
    }


async def _victims(
    http: aiohttp.ClientSession,
    urls: Sequence[str],
    keys: dict[str, str],
    mix: Mix,
    trace: Sequence[TraceRequest],
) -> list[RequestResult]:
    """Send each request when it is due; return the victims' results, and send the others away after that."""
    draw, victims, began = Random("gateways"), {one.tenant for one in mix.victims}, time.perf_counter()
    asked: list[asyncio.Task[RequestResult]] = []
    others: list[asyncio.Task[RequestResult]] = []
    for request in trace:
        await asyncio.sleep(max(0.0, began + request.at - time.perf_counter()))
        of = stream_completion(
            http,
            draw.choice(urls),
            keys[request.tenant],
            request.tenant,
            {"model": MODEL, "prompt": _token_ids(request), "max_tokens": request.output_tokens},
            endpoint=Endpoint.COMPLETIONS,
            seconds_max=600.0,
        )
        (asked if request.tenant in victims else others).append(asyncio.create_task(of))
    results = list(await asyncio.gather(*asked))
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return results


def _token_ids(request: TraceRequest) -> list[int]:
    """Return the prompt: each block begins with its own id, in small numbers."""
    ids = array("H")
    for block in request.blocks:
        ids.frombytes(block.to_bytes(8, "little"))
        ids.extend([1] * (BLOCK_TOKENS - 4))
    return ids[: request.prompt_tokens].tolist()


def _measured(results: Sequence[RequestResult]) -> dict[str, Any]:
    ttft = [one.ttft for one in results if one.ttft is not None and one.error is None]
    return {
        **_figures(ttft),
        "errors": dict(Counter(one.error for one in results if one.error is not None)),
    }


def _figures(seconds: Sequence[float]) -> dict[str, Any]:
    return {
        "requests": len(seconds),
        **{f"ttft_ms_p{percent}": 1000 * (percentile(seconds, percent) or 0.0) for percent in PERCENTS},
    }
