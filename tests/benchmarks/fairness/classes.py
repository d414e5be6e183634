"""Voice, code, chat and a flood of batch requests: a real gateway and two simulated engines as processes.

All requests are of one tenant.

The engines take SLOWER times as long as on a GPU, and all targets are SLOWER times as long, so that a busy machine
disturbs the figures less.
"""

import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import aiohttp

from gateway.bench.client import Endpoint, stream_completion
from gateway.bench.results import RequestResult, percentile
from gateway.bench.trace_prompts import COMMON
from policies.simulation.class_lengths import Lengths
from policies.simulation.turns.queue_rule import RELEASE_WINDOW_TOKENS
from tests.benchmarks.fairness.class_traffic import (
    BATCH,
    BATCH_IN_FLIGHT,
    RATE,
    TARGETS,
    interactive,
)
from tests.benchmarks.routing.mock_worker import MODEL, TOKENS_PER_WORD
from tests.benchmarks.routing.validate import word_tokenizer
from tests.stage.processes import GatewayProcess, Process

WORKERS, KV_TOKENS = 2, 2_100_000
SLOWER = 4
WARMING_SECONDS = 100.0
"""Seconds that are not counted, until the flood is steady.

Speeds are learnt when answers end, which takes about 17 s. The flood's beginning takes about 80: its first 256
prompts come at once, and with classes they are computed later than without, which says nothing of a flood that
lasts. Counted from 25 s on, simulated work beside short prompts, long prompts and long answers is 0.96, 0.92 and
0.91 of that without classes (three seeds); from 100 s on 0.98, 0.95 and 1.05 (two of them).
"""

NUMBER_WORDS = 4

WITHOUT_BATCH, WITHOUT_CLASSES = "without batch", "without classes"
ROWS: dict[str, dict[str, Any]] = {
    WITHOUT_BATCH: {},
    WITHOUT_CLASSES: {},
    "classes": {},
}
"""Settings of the queue by row."""


async def runs(seconds: float, batch: str, rows: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Return the figures by row and service class; `batch` names the kind of batch prompts."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="radixgate-classes-") as name:
        for number, row in enumerate(rows if rows is not None else ROWS):
            directory = Path(name) / f"run-{number}"
            directory.mkdir()
            found[row] = await _run(directory, row, seconds, BATCH[batch])
    return found


async def _run(directory: Path, row: str, seconds: float, batch: Lengths) -> dict[str, Any]:
    tokenizer = word_tokenizer(directory / "tokenizer")
    mock = (sys.executable, "-m", "tests.benchmarks.routing.mock_worker")
    options = ("--kv-tokens", str(KV_TOKENS), "--slower", str(SLOWER))
    engines = [Process(f"engine-{number}", directory, (*mock, *options)) for number in range(WORKERS)]
    gateway: GatewayProcess | None = None
    try:
        for engine in engines:
            await engine.start()
        gateway = GatewayProcess("gateway", directory, _settings(engines, tokenizer, ROWS[row]))
        await gateway.start()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            await gateway.all_up(http)
            sender = Sender(http, f"http://{gateway.host}:{gateway.port}", classes=row != WITHOUT_CLASSES)
            await sender.send(seconds, batch if row != WITHOUT_BATCH else None)
    finally:
        for process in (*engines, *([gateway] if gateway is not None else [])):
            await process.stop()
    return sender.figures()


def _settings(engines: list[Process], tokenizer: Path, queueing: dict[str, Any]) -> dict[str, Any]:
    return {
        "database": {"url": "none"},
        "workers": [{"id": engine.name, "kind": "sglang", "url": engine.url} for engine in engines],
        "models": [{"name": MODEL, "tokenizer": str(tokenizer), "block_size": 64 // TOKENS_PER_WORD}],
        "classes": {name: {"ttft_ms": 1000 * SLOWER * target} for name, target in TARGETS.items()},
        "queueing": {
            "waiting_seconds_max": 600,
            "release_window_tokens": RELEASE_WINDOW_TOKENS // TOKENS_PER_WORD,
            **queueing,
        },
        # The simulated engine sends nothing between the first token and the last.
        "requests": {"idle_seconds_max": 600},
    }


def _number_in_words(number: int) -> str:
    """Return a number in words that the tokenizer knows: every prompt that begins with one is new."""
    words = []
    for _ in range(NUMBER_WORDS):
        number, digit = divmod(number, len(COMMON))
        words.append(COMMON[digit])
    return " ".join(words)


def work_between(
    begin: float, end: float, result: RequestResult, prompt_tokens: int, output_tokens: int
) -> float:
    """Return the cost units of a request that were computed between two moments.

    The prompt counts at the first token, the answer evenly until the last one. To count requests when they end
    would leave out what is computed of long answers while their number still rises.
    """
    first, last = result.first_at, result.last_at
    if first is None or last is None or result.error is not None:
        return 0.0
    prompt = prompt_tokens if begin <= first < end else 0
    inside = max(0.0, min(last, end) - max(first, begin))
    return prompt + 2 * output_tokens * inside / max(last - first, 1e-9)


class Sender:
    """Sends the traffic of all classes to one gateway, and keeps what became of it."""

    def __init__(self, http: aiohttp.ClientSession, url: str, *, classes: bool) -> None:
        """`classes`: whether requests name their class."""
        self._http = http
        self._url = url
        self._classes = classes
        self._results: dict[str, list[RequestResult]] = defaultdict(list)
        self._units = 0.0
        self._numbers = itertools.count()
        self._from = self._until = 0.0

    async def send(self, seconds: float, batch: Lengths | None) -> None:
        """Send for so many seconds after warming up; with `batch` a flood of such requests beside the others."""
        began = time.perf_counter()
        self._from, self._until = began + WARMING_SECONDS, began + WARMING_SECONDS + seconds
        async with asyncio.TaskGroup() as tasks:
            for number in range(BATCH_IN_FLIGHT if batch is not None else 0):
                tasks.create_task(self._flood(random.Random(number), batch))
            for one in interactive(RATE / SLOWER, WARMING_SECONDS + seconds, seed=1):
                await asyncio.sleep(max(0.0, began + one.at - time.perf_counter()))
                tasks.create_task(self._ask(one.service_class, one.prompt_tokens, one.output_tokens))

    async def _flood(self, chance: random.Random, lengths: Lengths | None) -> None:
        assert lengths is not None
        while time.perf_counter() < self._until:
            await self._ask("batch", *lengths(chance))

    async def _ask(self, service_class: str, prompt_tokens: int, output_tokens: int) -> None:
        words = max(NUMBER_WORDS, prompt_tokens // TOKENS_PER_WORD)
        prompt = f"{_number_in_words(next(self._numbers))} " + "the " * (words - NUMBER_WORDS)
        result = await stream_completion(
            self._http,
            self._url,
            "",
            service_class,
            {"model": MODEL, "prompt": prompt, "max_tokens": output_tokens},
            endpoint=Endpoint.COMPLETIONS,
            headers={"x-radixgate-class": service_class} if self._classes else None,
            seconds_max=600.0,
        )
        if self._from <= result.sent_at < self._until:
            self._results[service_class].append(result)
        self._units += work_between(self._from, self._until, result, prompt_tokens, output_tokens)

    def figures(self) -> dict[str, Any]:
        """Return the figures of each class, and the work that was done while requests were counted, a second."""
        found: dict[str, Any] = {"units_per_second": self._units / (self._until - self._from)}
        for name, results in self._results.items():
            ttft = [one.ttft for one in results if one.ttft is not None and one.error is None]
            late = sum(seconds > SLOWER * TARGETS[name] for seconds in ttft)
            found[name] = {
                "requests": len(results),
                "refused": len(results) - len(ttft),
                "late": late,
                "missed": (len(results) - len(ttft) + late) / len(results),
                "ttft_ms_p50": 1000 * percentile(ttft, 50) / SLOWER,
                "ttft_ms_p99": 1000 * percentile(ttft, 99) / SLOWER,
                "errors": dict(Counter(one.error for one in results if one.error is not None)),
            }
        return found
