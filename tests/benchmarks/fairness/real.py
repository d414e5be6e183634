"""Real gateways, a real worker and a real Valkey as processes: two callers with short prompts, and one that floods.

The worker is tiny and slow: only the ratio to a run of the victims alone, in the same minute, has a meaning.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import aiohttp

from gateway.bench.client import stream_completion
from gateway.bench.results import RequestResult
from gateway.tenants.keys import new_key, pepper
from policies.queueing.fairness_account import jain
from tests.benchmarks.subjects import run_to_its_end
from tests.stage.processes import EmbeddedProcess, GatewayProcess
from tests.stage.valkey import ValkeyServer

SECRET = "a secret of the bench"
MODEL = "tiny"
VICTIMS = ("victim-0", "victim-1")
FLOOD = "flood"
GATEWAYS = 2
VICTIM_WORDS, FLOOD_WORDS = 60, 600
EVERY_SECONDS = 0.5
FLOODING = 40
"""Requests that the flooding tenant has open all the time."""

WINDOW_TOKENS = 2048
POLICIES: dict[str, dict[str, Any]] = {
    "victims alone": {"across": "sfq"},
    "fifo in the engine": {"across": "fifo", "release_window_tokens": 10**8},
    "fifo": {"across": "fifo"},
    "sfq": {"across": "sfq"},
}


async def runs(seconds: float) -> dict[str, dict[str, Any]]:
    """Return the figures by policy."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="radixgate-fairness-") as name:
        directory = Path(name)
        checkpoint = directory / MODEL
        await run_to_its_end(
            *("the checkpoint", sys.executable, "-m", "workers.engine.tiny_checkpoint", str(checkpoint)),
            *("--hidden", "256", "--layers", "4"),
        )
        for number, (policy, queueing) in enumerate(POLICIES.items()):
            of = directory / f"run-{number}"
            of.mkdir()
            async with _deployed(of, checkpoint, queueing) as (gateways, keys, http):
                callers = [_victim(http, gateways, keys, name, seconds) for name in VICTIMS]
                if policy != "victims alone":
                    callers += [_flooder(http, gateways, keys, seconds, at) for at in range(FLOODING)]
                results = [one for of in await asyncio.gather(*callers) for one in of]
            found[policy] = _figures(results, seconds)
    alone, fifo = found["victims alone"], found["fifo in the engine"]
    for figures in found.values():
        for percent in (50, 99):
            figure = f"ttft_ms_p{percent}"
            before = alone["tenants"]["victims"][figure]
            victims = figures["tenants"]["victims"]
            victims[f"{figure}_ratio_to_alone"] = victims[figure] / before
        figures["all"]["units_per_second_ratio_to_fifo"] = (
            figures["all"]["units_per_second"] / fifo["all"]["units_per_second"]
        )
    return found


@asynccontextmanager
async def _deployed(
    directory: Path, checkpoint: Path, queueing: dict[str, Any]
) -> AsyncIterator[tuple[list[str], dict[str, str], aiohttp.ClientSession]]:
    """Start everything; yield the gateways' URLs, the tenants' keys and a client."""
    tenants = (*VICTIMS, FLOOD)
    keys = {tenant: new_key(pepper(SECRET.encode())) for tenant in tenants}
    async with AsyncExitStack() as stack:
        valkey = ValkeyServer(directory)
        stack.callback(valkey.kill)
        valkey.start()
        worker = EmbeddedProcess("worker", directory, checkpoint, kv_tokens=100_000)
        stack.push_async_callback(worker.stop)
        await worker.start()
        tree = {
            "redis": {"url": valkey.url, "timeout_ms": 1000},
            "database": {"url": "none"},
            "deployment_secret": SECRET,
            "models": [{"name": MODEL, "tokenizer": str(checkpoint), "block_size": 64}],
            "workers": [{"id": "worker", "kind": "embedded", "url": worker.url, "models": [MODEL]}],
            "queueing": {"release_window_tokens": WINDOW_TOKENS, "waiting_seconds_max": 300, **queueing},
            "requests": {"first_token_seconds_max": 300},
            "plans": [{"name": "plan"}],
            "tenants": [
                {"id": name, "plan": "plan", "keys": [{"id": key.id, "hash": key.hash}]}
                for name, key in keys.items()
            ],
        }
        gateways = [GatewayProcess(f"gateway-{at}", directory, tree) for at in range(GATEWAYS)]
        for process in gateways:
            stack.push_async_callback(process.stop)
        await asyncio.gather(*(process.start() for process in gateways))
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        for process in gateways:
            await process.all_up(http)
        yield [process.url for process in gateways], {n: key.text for n, key in keys.items()}, http


async def _victim(
    http: aiohttp.ClientSession, urls: list[str], keys: dict[str, str], tenant: str, seconds: float
) -> list[RequestResult]:
    """Send one request after another on schedule, whatever became of earlier ones (open loop)."""
    chance, asked, end = random.Random(tenant), [], time.monotonic() + seconds
    while time.monotonic() < end:
        asked.append(
            asyncio.ensure_future(_ask(http, chance.choice(urls), keys[tenant], tenant, chance, VICTIM_WORDS))
        )
        await asyncio.sleep(EVERY_SECONDS * chance.uniform(0.5, 1.5))
    return list(await asyncio.gather(*asked))


async def _flooder(
    http: aiohttp.ClientSession, urls: list[str], keys: dict[str, str], seconds: float, at: int
) -> list[RequestResult]:
    chance, done, end = random.Random(f"flood {at}"), [], time.monotonic() + seconds
    while time.monotonic() < end:
        done.append(await _ask(http, chance.choice(urls), keys[FLOOD], FLOOD, chance, FLOOD_WORDS))
    return done


async def _ask(
    http: aiohttp.ClientSession, url: str, key: str, tenant: str, chance: random.Random, words: int
) -> RequestResult:
    text = " ".join(f"{chance.getrandbits(32):x}" for _ in range(words // 4))
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        "ignore_eos": True,
    }
    return await stream_completion(http, url, key, tenant, body, seconds_max=300.0)


def _figures(results: list[RequestResult], seconds: float) -> dict[str, Any]:
    def of(chosen: list[RequestResult]) -> dict[str, Any]:
        ttft = sorted(1000 * one.ttft for one in chosen if one.ttft is not None and one.error is None)
        cuts = quantiles(ttft, n=100, method="inclusive") if len(ttft) > 1 else []
        return {
            "requests": len(chosen),
            "errors": sum(one.error is not None for one in chosen),
            "ttft_ms_p50": cuts[49] if cuts else None,
            "ttft_ms_p99": cuts[98] if cuts else None,
        }

    victims = [one for one in results if one.tenant in VICTIMS]
    ended = max((one.last_at or one.sent_at for one in results), default=0.0)
    began = min((one.sent_at for one in results), default=0.0)
    units = sum(one.prompt_tokens - one.cached_tokens + 2 * one.output_tokens for one in results)
    served = [sum(one.error is None for one in victims if one.tenant == name) for name in VICTIMS]
    return {
        "all": {
            "seconds": ended - began,
            "units_per_second": units / (ended - began),
            "evenness": jain(served),
        },
        "tenants": {"victims": of(victims), "others": of([one for one in results if one.tenant == FLOOD])},
    }
