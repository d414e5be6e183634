"""The simulated engine in real time behind OpenAI's API: it computes nothing and takes as long as if it did.

    python -m tests.benchmarks.routing.mock_worker --kv-tokens N [--port P] [--slower FACTOR] [--tokens-per-word N]

Block cache with LRU eviction, continuous batching and chunked prefill are those of policies/simulation. A word
stands for eight tokens, so that long prompts cost the machine less: the API counts words, and a block has 64 of
them. With one token for each word, prompts of token ids cost little too. The worker answers SGLang's probes, and
publishes no KV events.
"""

import argparse
import asyncio
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson
import uvloop
from aiohttp import web
from xxhash import xxh3_64_intdigest

from policies.simulation.engines.block_cache import BlockCache
from policies.simulation.engines.simulated_engine import SimulatedEngine, SimulatedJob
from policies.simulation.engines.step_time import StepTime
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest

MODEL = "mock"
TOKENS_PER_WORD = 8
BLOCK_WORDS = BLOCK_TOKENS // TOKENS_PER_WORD


@dataclass(slots=True, eq=False)
class Answer:
    """One request in the engine."""

    job: SimulatedJob
    first: asyncio.Event = field(default_factory=asyncio.Event)
    last: asyncio.Event = field(default_factory=asyncio.Event)


class RealTime:
    """Runs a simulated engine by the clock: each step ends at the moment that the simulation says."""

    def __init__(self, kv_tokens: int, times: StepTime) -> None:
        self.kv_tokens = kv_tokens
        self._engine = SimulatedEngine(
            cache=BlockCache(kv_tokens // BLOCK_TOKENS), capacity_tokens=kv_tokens, times=times
        )
        self._answers: dict[int, Answer] = {}
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, prompt_tokens: int, output_tokens: int, blocks: "array[int]") -> Answer:
        self._number += 1
        request = TraceRequest(
            at=0.0, prompt_tokens=prompt_tokens, output_tokens=output_tokens, blocks=blocks
        )
        now = time.monotonic()
        answer = self._answers[self._number] = Answer(SimulatedJob(self._number, request, now))
        self._engine.submit(answer.job, now)
        self._wait()
        return answer

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        ends_at = self._engine.ends_at
        if ends_at is None:
            self._timer = None
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, ends_at - time.monotonic()), self._ended)

    def _ended(self) -> None:
        engine = self._engine
        # Late wake-ups do not add up: the next step begins at the moment when this one was due to end.
        while engine.ends_at is not None and engine.ends_at <= time.monotonic() + 0.0005:
            now = engine.ends_at
            engine.finish(now)
            for job in engine.first_tokens:
                self._answers[job.number].first.set()
            for job in engine.finished:
                self._answers.pop(job.number).last.set()
            engine.first_tokens.clear()
            engine.finished.clear()
            engine.published.clear()
            engine.cache.evicted.clear()
            engine.begin(now)
        self._wait()


def blocks_of(words: Sequence[str], block_words: int = BLOCK_WORDS) -> "array[int]":
    """Return the chained ids of the blocks, with the last, partial one."""
    ids, chained = array("Q"), 0
    for at in range(0, len(words), block_words):
        chained = xxh3_64_intdigest(" ".join(words[at : at + block_words]).encode(), seed=chained)
        ids.append(chained)
    return ids


def app_of(engine: RealTime, times: StepTime, tokens_per_word: int) -> web.Application:
    async def completions(http: web.Request) -> web.StreamResponse:
        body = orjson.loads(await http.read())
        prompt = body["prompt"]
        words = prompt.split() if isinstance(prompt, str) else list(map(str, prompt))
        # The tenant's salt keeps caches apart here too.
        salted = [str(body.get("cache_salt", "")) + words[0], *words[1:]]
        blocks = blocks_of(salted, BLOCK_TOKENS // tokens_per_word)
        answer = engine.submit(tokens_per_word * len(words), max(1, body.get("max_tokens", 16)), blocks)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(http)
        await answer.first.wait()
        await response.write(_frame({"choices": [{"index": 0, "text": "a"}]}))
        await answer.last.wait()
        if answer.job.request.output_tokens > 1:
            await response.write(_frame({"choices": [{"index": 0, "text": " b", "finish_reason": "length"}]}))
        usage = {
            "prompt_tokens": len(words),
            "completion_tokens": answer.job.request.output_tokens,
            "prompt_tokens_details": {"cached_tokens": answer.job.cached_tokens // tokens_per_word},
        }
        await response.write(_frame({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response

    async def models(http: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL}]})

    async def info(http: web.Request) -> web.Response:
        said = {
            "max_total_num_tokens": engine.kv_tokens // tokens_per_word,
            "chunked_prefill_size": times.chunk_tokens // tokens_per_word,
            "max_running_requests": times.sequences_max,
        }
        return web.json_response({**said, "instance_id": "mock"})

    async def ready(http: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/completions", completions)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/server_info", info)
    app.router.add_get("/ready", ready)
    return app


def _frame(value: dict[str, Any]) -> bytes:
    return (
        b"data: " + orjson.dumps({"id": "x", "object": "text_completion", "model": MODEL, **value}) + b"\n\n"
    )


def slowed(times: StepTime, factor: float) -> StepTime:
    """Return the step times of an engine whose steps take so many times as long."""
    prefill, decode = times.prefill_ms, times.decode_ms
    return msgspec.structs.replace(
        times,
        prefill_ms=tuple(factor * each for each in prefill),
        decode_ms=tuple(factor * each for each in decode),
    )


async def main() -> None:
    parser = argparse.ArgumentParser(prog="mock-worker")
    parser.add_argument("--kv-tokens", type=int, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--slower", type=float, default=1.0, help="steps take so many times as long")
    parser.add_argument("--tokens-per-word", type=int, default=TOKENS_PER_WORD)
    given = parser.parse_args()
    times = slowed(StepTime(), given.slower)
    # A request whose client has left would compute on; the clients of this benchmark do not leave.
    runner = web.AppRunner(
        app_of(RealTime(given.kv_tokens, times), times, given.tokens_per_word), access_log=None
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", given.port).start()
    print(f"mock worker ready at http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
