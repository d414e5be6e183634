"""What a long new prompt does to everybody else: eight slow streams run while 100k-token prompts arrive.

streams   . . . . . . . . . .      . . . .      one chunk each 10 ms; the gap between two of them is measured
prompts         P                P               400,000 characters, each new, one a second
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gateway.bench.results import percentile
from tests.benchmarks.load import Client, WatchedStream, connect
from tests.benchmarks.subjects import Subject
from tests.benchmarks.wire import Texts, request

STREAMS = 8
GAP_MS = 10
CHARACTERS = 400_000
CALM_SECONDS = 0.5


@dataclass(slots=True)
class Gaps:
    """Milliseconds between chunks, and from a long prompt's first byte out to its answer's last byte in."""

    calm: list[float] = field(default_factory=list)
    beside_long: list[float] = field(default_factory=list)
    long_prompts: list[float] = field(default_factory=list)


async def measure(subjects: Sequence[Subject], *, rounds: int, prompts: int) -> dict[str, dict[str, float]]:
    """Figures by subject: so many long prompts a round, and as long without them."""
    texts = Texts()
    taken = {subject.name: Gaps() for subject in subjects}
    for _ in range(rounds):
        for subject in subjects:
            gaps = taken[subject.name]
            gaps.calm += await _watch(subject, texts, (), prompts, gaps)
            long = [texts.new(CHARACTERS) for _ in range(prompts)]
            gaps.beside_long += await _watch(subject, texts, long, prompts, gaps)
    return {name: _figures(gaps) for name, gaps in taken.items()}


async def _watch(
    subject: Subject, texts: Texts, long: Sequence[str], seconds: float, gaps: Gaps
) -> list[float]:
    """The gaps of all streams; raises BadAnswer and OSError."""
    chunks = round((CALM_SECONDS + seconds) * 1000 / GAP_MS)
    slow = [
        WatchedStream(iter([request(subject, texts.new(200), chunks=chunks, gap_ms=GAP_MS)]))
        for _ in range(STREAMS)
    ]
    bodies = [request(subject, text) for text in long]
    try:
        for stream in slow:
            await connect(subject, stream)
        await asyncio.sleep(CALM_SECONDS)
        for data in bodies:
            began = time.perf_counter()
            gaps.long_prompts.append(await _one(subject, data))
            await asyncio.sleep(max(0.0, began + 1 - time.perf_counter()))
        for stream in slow:
            await stream.finished
    finally:
        for stream in slow:
            stream.close()
    return [1000 * (later - earlier) for stream in slow for earlier, later in pairwise(stream.arrived_at)]


async def _one(subject: Subject, data: bytes) -> float:
    client = Client(iter([data]))
    began = time.perf_counter()
    await connect(subject, client)
    try:
        await client.finished
        return 1000 * (time.perf_counter() - began)
    finally:
        client.close()


def _figures(gaps: Gaps) -> dict[str, float]:
    figures = {
        "calm_gap_ms_max": max(gaps.calm),
        "calm_gap_ms_p99": percentile(gaps.calm, 99),
        "stall_gap_ms_max": max(gaps.beside_long),
        "stall_gap_ms_p99": percentile(gaps.beside_long, 99),
        "long_prompt_ms_p50": percentile(gaps.long_prompts, 50),
    }
    return {name: value for name, value in figures.items() if value is not None}
