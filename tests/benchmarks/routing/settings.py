"""The fleets and traces to compare. Each group is a table."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from policies.simulation.contenders import contender_names
from policies.simulation.scenario import Scenario
from policies.simulation.trial import LIMITS, TraceSource, Trial
from policies.simulation.turn_queue import RELEASE_WINDOW_TOKENS, QueueRule
from policies.simulation.workloads import WorkloadParameters

CONVERSATIONS = Path(__file__).parents[2] / "data" / "mooncake" / "conversation_trace.jsonl"
WINDOW_TOKENS = 24_000
QUEUED: dict[str, Any] = {"window_tokens": RELEASE_WINDOW_TOKENS, "turns": QueueRule()}
HELD: dict[str, dict[str, Any]] = {
    "cost, in its turn": QUEUED,
    "cost, order shortest": {"order": "shortest"},
    "cost, held, hrrn": {"window_tokens": WINDOW_TOKENS, "hold": "hrrn"},
    "cost, held, shortest": {"window_tokens": WINDOW_TOKENS, "hold": "shortest"},
}
"""`cost` behind the gateway's queue; with another order in the engines' queues; and with requests held back in any
order that helps, at whatever cost to single ones, and never sent to a worker whose KV memory may be too small."""

FLEETS = {
    "conversation x3, 4 workers of 2.1M": (3.0, 4, 2_100_000),
    "conversation x4, 8 workers of 1M": (4.0, 8, 1_000_000),
    "conversation x8, 8 workers of 2.1M": (8.0, 8, 2_100_000),
    "conversation x2, 4 workers of 524k": (2.0, 4, 524_288),
}
WORKLOADS = {
    "generated agents, 4 workers of 1M": ("agents", 1.0, 1_000_000),
    "generated chat, 4 workers of 300k": ("chat", 9.0, 300_000),
    "generated prompts, 4 workers of 500k": ("prompts", 45.0, 500_000),
    "generated documents, 4 workers of 1M": ("rag", 12.0, 1_000_000),
    "generated mixture, 4 workers of 1M": ("mixed", 4.0, 1_000_000),
}
GATEWAYS = (1, 2, 4, 8)
SYNC_SECONDS = 0.05
AGAINST = ("cost", "product", "least_work")


IDLE = {
    "idle: conversation x0.25, 4 workers of 2.1M": TraceSource(path=CONVERSATIONS, speed=0.25),
    "idle: generated mixture, 4 workers of 1M": TraceSource(
        workload="mixed", load=WorkloadParameters(requests=1500, rate=0.1)
    ),
}
"""With hardly two requests at one time, no policy's median may be worse than that of round_robin."""


def trials(quick: bool, seeds: Sequence[int], others: Sequence[Path] = ()) -> Iterator[Trial]:
    """Yield all trials, or with `quick` the first quarter of each; `others` are further traces."""
    for group, (speed, workers, kv_tokens) in FLEETS.items():
        source = TraceSource(path=CONVERSATIONS, speed=speed, requests_max=3000 if quick else None)
        yield from _table(group, source, Scenario(workers=workers, kv_tokens=kv_tokens), seeds)
    for group, (kind, rate, kv_tokens) in WORKLOADS.items():
        source = TraceSource(
            workload=kind, load=WorkloadParameters(requests=1500 if quick else 6000, rate=rate)
        )
        yield from _table(group, source, Scenario(workers=4, kv_tokens=kv_tokens), seeds)
    for group, source in IDLE.items():
        source = replace(source, requests_max=1500)
        yield from _table(group, source, Scenario(workers=4, kv_tokens=2_100_000), seeds)
    yield from _gateways(quick, seeds)
    for path in others:
        for speed, workers, kv_tokens in FLEETS.values():
            source = TraceSource(path=path, speed=speed, requests_max=3000 if quick else None)
            group = f"{path.stem} x{speed:g}, {workers} workers of {kv_tokens // 1000}k"
            yield from _table(group, source, Scenario(workers=workers, kv_tokens=kv_tokens), seeds)


def _table(group: str, source: TraceSource, scenario: Scenario, seeds: Sequence[int]) -> Iterator[Trial]:
    for subject in (*contender_names(), *LIMITS):
        for seed in seeds:
            yield Trial(subject=subject, source=source, scenario=scenario, seed=seed, group=group)
    for name, changes in HELD.items():
        for seed in seeds:
            yield Trial(
                subject="cost",
                source=source,
                scenario=replace(scenario, **changes),
                seed=seed,
                group=group,
                name=name,
            )


def _gateways(quick: bool, seeds: Sequence[int]) -> Iterator[Trial]:
    """Yield trials of several gateways: each knows its own dispatches at once, others' after 50 ms, or never."""
    source = TraceSource(path=CONVERSATIONS, speed=4.0, requests_max=3000 if quick else None)
    for sync, known in ((SYNC_SECONDS, "known after 50 ms"), (None, "never known")):
        for count in GATEWAYS[1:]:
            scenario = Scenario(workers=8, kv_tokens=1_000_000, gateways=count, sync_seconds=sync)
            group = f"{count} gateways, x4, 8 workers of 1M, others' loads {known}"
            for seed in seeds:
                for subject in AGAINST:
                    yield Trial(subject=subject, source=source, scenario=scenario, seed=seed, group=group)
                yield Trial(
                    subject="cost",
                    source=source,
                    scenario=replace(scenario, **QUEUED),
                    seed=seed,
                    group=group,
                    name="cost, in its turn",
                )
