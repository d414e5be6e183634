"""A tenant whose prompts never come again: memory stays bounded, and another tenant's blocks stay in the index.

    python -m tests.soak.flood [--requests 17000] [--characters 22000] [--memory 16777216]

The flooding tenant sends prompts through a real gateway, each new from its first words on; every block of a prompt
ends one more distinct prefix, 591 of them in 22,000 characters, ten million in all. The other tenant has sent some
prompts before and sends nothing meanwhile. Exit code 1 when a request fails, the index exceeds its bound, or blocks
of the other tenant are gone.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import redis.asyncio as redis
import uvloop

from gateway.tenants.keys import NewKey, new_key, pepper
from tests.benchmarks.subjects import run_to_its_end
from tests.benchmarks.wire import Texts
from tests.stage.processes import GatewayProcess, fast_workers, resident_bytes
from tests.stage.valkey import ValkeyServer

MODEL, SECRET = "flooded", "a secret of the tests"
CALM, FLOODING = "calm", "flooding"
CALM_PROMPTS = 100
BLOCK_SIZE = 8
"""In tokens: so many that no two prompts begin with the same block, which the worker would deny to have cached."""
MEMORY_BYTES = 16 * 1024**2
"""Less than the caches of the workers hold, which evict by the last use alone, no matter of which tenant."""

CONNECTIONS = 16
SAMPLES = 20
ROUNDING = 1.25
"""The index may exceed its bound by what arrives in one round of maintenance."""


def settings(
    valkey: ValkeyServer, checkpoint: Path, urls: str, keys: Mapping[str, NewKey], memory: int
) -> dict[str, Any]:
    """Return settings of a gateway with an index of so many bytes, with short blocks."""
    return {
        "redis": {"url": valkey.url, "timeout_ms": 1000},
        "deployment_secret": SECRET,
        "models": [{"name": MODEL, "tokenizer": str(checkpoint), "block_size": BLOCK_SIZE}],
        "workers": [{"id": f"w{n}", "kind": "sglang", "url": url} for n, url in enumerate(urls.split(","))],
        "plans": [{"name": "plan", "limits": [{"requests": 10**9, "per": "minute"}]}],
        "tenants": [
            {"id": tenant, "plan": "plan", "keys": [{"id": key.id, "hash": key.hash}]}
            for tenant, key in keys.items()
        ],
        "index": {"memory_bytes_max": memory},
        "telemetry": {"log_level": "warning"},
        "drain": {"notice_seconds": 0, "seconds": 1},
    }


class Flood:
    """A gateway, its Valkey, and requests to it."""

    def __init__(self, gateway: GatewayProcess, valkey: ValkeyServer, http: aiohttp.ClientSession) -> None:
        self.failed = 0
        self._gateway = gateway
        self._valkey = redis.from_url(valkey.url)
        self._http = http
        self._texts = Texts()

    async def send(self, key: NewKey, requests: int, characters: int) -> None:
        """Send so many requests, some at a time."""
        left = iter(range(requests))

        async def caller() -> None:
            for _ in left:
                # A template of chats would begin all prompts alike.
                body = {"model": MODEL, "max_tokens": 16, "prompt": self._texts.new(characters)}
                headers = {"Authorization": f"Bearer {key.text}"}
                url = f"http://127.0.0.1:{self._gateway.port}/v1/completions"
                async with self._http.post(url, json=body, headers=headers) as answer:
                    await answer.read()
                    self.failed += answer.status != 200

        await asyncio.gather(*(caller() for _ in range(CONNECTIONS)))

    async def blocks(self) -> dict[str, int]:
        """Return the blocks in the index by isolation group."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "index", "stats", "--json"),
            *("--config", str(self._gateway.settings_file)),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        return {each["group"]: each["blocks"] for each in json.loads(output)["models"]}

    async def memory(self) -> tuple[int, int, int]:
        """Return the bytes of the gateway, of its index as it estimates them, and of Valkey."""
        gauges = await self._gateway.metrics(self._http)
        used = int((await self._valkey.info("memory"))["used_memory"])
        return resident_bytes(self._gateway.pid), int(gauges["index_memory_bytes"]), used

    async def close(self) -> None:
        """Close the connection to Valkey."""
        await self._valkey.aclose()


async def run(options: argparse.Namespace) -> bool:
    """Run the flood, print the memory on the way, and return whether all is well. Raises ChildFailed."""
    keys = {tenant: new_key(pepper(SECRET.encode())) for tenant in (CALM, FLOODING)}
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="radixgate-flood-")))
        valkey = ValkeyServer(directory)
        stack.callback(valkey.kill)
        valkey.start()
        checkpoint = directory / MODEL
        await run_to_its_end(
            "the checkpoint", sys.executable, "-m", "workers.engine.tiny_checkpoint", str(checkpoint)
        )
        workers = fast_workers(directory, (MODEL,))
        stack.push_async_callback(workers.stop)
        await workers.start()
        gateway = GatewayProcess(
            "gateway", directory, settings(valkey, checkpoint, workers.url, keys, options.memory)
        )
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        http = await stack.enter_async_context(aiohttp.ClientSession())
        await gateway.all_up(http)
        flood = Flood(gateway, valkey, http)
        stack.push_async_callback(flood.close)
        return await flooded(flood, keys, options)


async def flooded(flood: Flood, keys: Mapping[str, NewKey], options: argparse.Namespace) -> bool:
    """Let one tenant flood the index, and return whether the other one's blocks stay and the bound holds."""
    await flood.send(keys[CALM], CALM_PROMPTS, options.characters)
    before = sum((await flood.blocks()).values())
    most = 0
    for at in range(SAMPLES):
        await flood.send(keys[FLOODING], options.requests // SAMPLES, options.characters)
        process, index, used = await flood.memory()
        most = max(most, index)
        sent = (at + 1) * options.requests // SAMPLES
        figures = f"gateway {_mib(process)}, its index {_mib(index)}, Valkey {_mib(used)}"
        print(f"{sent:,} requests: {figures}", flush=True)
    blocks = await flood.blocks()
    print(f"blocks at first {before:,}, at the end {blocks}; failed requests {flood.failed}")
    return not flood.failed and most < ROUNDING * options.memory and before in blocks.values()


def _mib(number: int) -> str:
    return f"{number / 1024**2:,.1f} MiB"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=17_000)
    parser.add_argument("--characters", type=int, default=22_000)
    parser.add_argument("--memory", type=int, default=MEMORY_BYTES)
    sys.exit(0 if uvloop.run(run(parser.parse_args())) else 1)
