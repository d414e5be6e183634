"""The load of a count: requests in a Poisson process, in turn to each of the gateways that serve."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import aiohttp

BLOCK_SIZE = 64
BYTES_PER_TOKEN = 4
"""Bytes of text for each token, for a model without a tokenizer."""
CHUNKS = 4
GAP_MS = 10
"""From chunk to chunk: the first token and the end of a stream reach Redis apart, as real ones do."""
CONNECTIONS_MAX = 512
READY_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLoad:
    """What is sent to the gateways of a count, all together."""

    gateways: int
    requests_per_second: float
    """The rate at which requests are sent, and for which the plan calculates."""
    requests: int
    new_blocks: int
    """Blocks of a prompt that no other prompt has."""
    shared_blocks: int = 0
    """Blocks at the beginning of every prompt that all prompts of one tenant and model share."""
    serving: int = 0
    """The gateways that get requests; 0 means all. The others only follow the index."""
    prefill_ms: int = 0
    """The prefill of each prompt; a worker computes one prompt after the other."""
    window_tokens: int = 1_000_000
    """Uncached tokens that may be ahead at one worker: few make requests wait for a turn."""
    limited: bool = True
    """Whether the tenants have limits."""
    models: int = 1
    tenants: int = 1
    """The tenants; each has an organisation and a namespace of its own."""
    primaries: int = 0
    """The primaries of a Redis Cluster; 0 means one server."""
    one_by_one: bool = False
    """Whether each request is sent when the last one is answered, whatever the rate: at gateways that serve in
    turn, none then shares a call of Redis with another one."""
    tenant_shards: int = 1
    """The shards among which the tenants of each model are divided in a cluster."""

    @property
    def members(self) -> int:
        """The number of gateways that requests are sent to."""
        return self.serving or self.gateways


def model_names(load: FleetLoad) -> list[str]:
    """Return the names of the models."""
    return [f"model-{number:03}" for number in range(load.models)]


async def wait_until_served(urls: Sequence[str], key: str, load: FleetLoad) -> None:
    """Wait until every gateway has a worker for every model. Raises TimeoutError."""
    async with asyncio.timeout(READY_SECONDS_MAX), aiohttp.ClientSession() as http:
        for url in urls[: load.members]:
            for model in model_names(load):
                while not await _served(http, url, key, model):
                    await asyncio.sleep(0.1)


async def _served(http: aiohttp.ClientSession, url: str, key: str, model: str) -> bool:
    body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "ready?"}]}
    authorization = {"authorization": f"Bearer {key}"}
    async with http.post(f"{url}/v1/chat/completions", json=body, headers=authorization) as answer:
        await answer.read()
        return answer.status == 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What was measured of requests that were sent."""

    seconds: float
    """From the first request sent to the last one answered."""
    ttft_ms: Sequence[float]
    """Of each request, from the moment at which it should leave."""


async def send(urls: Sequence[str], keys: Sequence[str], load: FleetLoad, word: str, count: int) -> Sent:
    """Send so many requests at random moments of the load's rate, or one by one.

    Every prompt of one `word` differs from all others after its shared blocks. Raises AssertionError if a request
    fails.
    """
    loop, models = asyncio.get_running_loop(), model_names(load)
    block = BLOCK_SIZE * BYTES_PER_TOKEN
    shared = ("shared " * block)[: load.shared_blocks * block]
    chance = random.Random(word)
    gaps = [0.0 if load.one_by_one else chance.expovariate(load.requests_per_second) for _ in range(count)]
    moments = list(accumulate(gaps))
    began, ttft_ms = loop.time(), list[float]()

    async def one(http: aiohttp.ClientSession, number: int) -> None:
        await asyncio.sleep(began + moments[number] - loop.time())
        own = (f"{word} {number} " * block * (load.new_blocks + 1))[: load.new_blocks * block]
        body: dict[str, object] = {
            "model": models[number % len(models)],
            "messages": [{"role": "user", "content": shared + own}],
            "max_tokens": CHUNKS,
            "seed": GAP_MS,
            "stream": True,
        }
        if load.prefill_ms:
            body["min_tokens"] = load.prefill_ms
        authorization = {"authorization": f"Bearer {keys[number % len(keys)]}"}
        url = f"{urls[number % load.members]}/v1/chat/completions"
        async with http.post(url, json=body, headers=authorization) as answer:
            text = await answer.content.readany()
            ttft_ms.append(1000 * (loop.time() - began - moments[number]))
            text += await answer.read()
            assert answer.status == 200, text

    connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX)
    async with aiohttp.ClientSession(connector=connector) as http:
        if load.one_by_one:
            for number in range(count):
                await one(http, number)
        else:
            await asyncio.gather(*(one(http, number) for number in range(count)))
    return Sent(seconds=loop.time() - began, ttft_ms=ttft_ms)
