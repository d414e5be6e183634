"""How large requests hold up other streams: eight slow streams run while large requests arrive, one a second.

streams   . . . . . . . . . .      . . . .      one chunk each 10 ms; the gap between two of them is measured
large           L                L               each new: 400,000 characters, 1,000,000 token ids, or 10 MB

The reader of a stream notices the longest of the gaps.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gateway.bench.results import percentile
from tests.benchmarks.load import Client, WatchedStream, connect
from tests.benchmarks.subjects import Subject
from tests.benchmarks.wire import BadAnswer, Texts, request, request_of_ids

STREAMS = 8
GAP_MS = 10
CALM_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """A kind of large request: the names of its figures, and whether a subject may refuse it."""

    shown: str
    gaps: str
    answer: str
    made: Callable[[Subject, Texts], bytes]
    may_fail: bool = True


KINDS = (
    Large(
        shown="prompts of 400,000 characters",
        gaps="stall_gap_ms",
        answer="long_prompt_ms",
        made=lambda subject, texts: request(subject, texts.new(400_000)),
        may_fail=False,
    ),
    Large(
        shown="prompts of 1,000,000 token ids",
        gaps="million_tokens_gap_ms",
        answer="million_tokens_ms",
        made=lambda subject, texts: request_of_ids(subject, texts.ids(1_000_000)),
    ),
    Large(
        shown="bodies of 10 MB",
        gaps="ten_megabytes_gap_ms",
        answer="ten_megabytes_ms",
        made=lambda subject, texts: request(subject, texts.repeated(10_000_000)),
    ),
)


@dataclass(slots=True)
class Gaps:
    """Milliseconds between chunks, and from a large request's first byte sent to its answer's last byte."""

    between: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)


async def measure(subjects: Sequence[Subject], *, rounds: int, prompts: int) -> dict[str, dict[str, float]]:
    """Return the figures by subject: so many large requests of each kind a round, and as long without them.

    A kind that a subject refuses has no figures.
    """
    texts = Texts()
    calm = {subject.name: Gaps() for subject in subjects}
    taken = {(subject.name, kind): Gaps() for subject in subjects for kind in KINDS}
    for _ in range(rounds):
        for subject in subjects:
            await _watch(subject, texts, (), prompts, calm[subject.name])
            for kind in KINDS:
                large = [kind.made(subject, texts) for _ in range(prompts)]
                try:
                    await _watch(subject, texts, large, prompts, taken[subject.name, kind])
                except (BadAnswer, OSError):
                    if not kind.may_fail:
                        raise
    return {
        name: _figures("calm_gap_ms", gaps.between)
        | {
            figure: value
            for kind in KINDS
            for figure, value in (
                _figures(kind.gaps, taken[name, kind].between)
                | _figures(kind.answer, taken[name, kind].answers, (50,), worst=False)
            ).items()
        }
        for name, gaps in calm.items()
    }


async def _watch(subject: Subject, texts: Texts, large: Sequence[bytes], seconds: float, gaps: Gaps) -> None:
    """Collect the gaps of all streams. Raises BadAnswer and OSError."""
    chunks = round((CALM_SECONDS + seconds) * 1000 / GAP_MS)
    slow = [
        WatchedStream(iter([request(subject, texts.new(200), chunks=chunks, gap_ms=GAP_MS)]))
        for _ in range(STREAMS)
    ]
    answers = []
    try:
        for stream in slow:
            await connect(subject, stream)
        await asyncio.sleep(CALM_SECONDS)
        for data in large:
            began = time.perf_counter()
            answers.append(await _one(subject, data))
            await asyncio.sleep(max(0.0, began + 1 - time.perf_counter()))
        for stream in slow:
            await stream.finished
    finally:
        for stream in slow:
            stream.close()
    gaps.answers += answers
    for stream in slow:
        gaps.between += [1000 * (later - earlier) for earlier, later in pairwise(stream.arrived_at)]


async def _one(subject: Subject, data: bytes) -> float:
    client = Client(iter([data]))
    began = time.perf_counter()
    await connect(subject, client)
    try:
        await client.finished
        return 1000 * (time.perf_counter() - began)
    finally:
        client.close()


def _figures(
    name: str, values: Sequence[float], percents: Sequence[float] = (99,), *, worst: bool = True
) -> dict[str, float]:
    figures = {f"{name}_max": max(values)} if values and worst else {}
    for percent in percents:
        value = percentile(values, percent)
        if value is not None:
            figures[f"{name}_p{percent:g}"] = value
    return figures
