"""The fleets and traces to compare. Each group is a table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from policies.simulation.contenders import contender_names
from policies.simulation.scenario import Scenario
from policies.simulation.trial import LIMITS, TraceSource, Trial
from policies.simulation.turns.queue_rule import RELEASE_WINDOW_TOKENS, QueueRule
from policies.simulation.workloads import WorkloadParameters

DATA = Path(__file__).parents[2] / "data"
CONVERSATIONS = DATA / "mooncake" / "conversation_trace.jsonl"
CLAUDE_CODE = DATA / "claude_code" / "claude_sessions.jsonl"
QUEUED: dict[str, Any] = {"window_tokens": RELEASE_WINDOW_TOKENS, "turns": QueueRule()}
"""The queue of a gateway with its default settings."""

IN_ITS_TURN = ("cost", "product", "round_robin")
"""Rules that are also run behind the gateway's queue."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of traffic: a public trace or a generated workload, at three loads, on two fleets.

    `loads` are light, near saturation, and past it: factors of a trace's speed, or sessions a second of a workload.
    """

    loads: tuple[float, float, float]
    fleets: tuple[tuple[int, int], tuple[int, int]]
    """Number of workers and KV tokens of each: with room for what is shared, and with less."""
    path: Path | None = None
    requests: int = 4000

    def source(self, name: str, load: float, *, quick: bool) -> TraceSource:
        """Return the requests at one load; with `quick` a quarter of them."""
        count = self.requests // 4 if quick else self.requests
        if self.path is not None:
            return TraceSource(path=self.path, speed=load, requests_max=count)
        return TraceSource(workload=name, load=WorkloadParameters(requests=count, rate=load))


TRAFFIC: Mapping[str, Traffic] = {
    "conversation": Traffic((0.5, 3.0, 5.0), ((4, 2_100_000), (4, 524_288)), CONVERSATIONS, 12_031),
    "claude code": Traffic((1.0, 3.0, 5.0), ((4, 2_100_000), (8, 1_000_000)), CLAUDE_CODE, 1880),
    "teams": Traffic((0.2, 1.0, 1.6), ((4, 2_100_000), (8, 524_288))),
    "giant": Traffic((4.0, 40.0, 80.0), ((4, 2_100_000), (8, 262_144))),
    "stampede": Traffic((1.0, 8.0, 16.0), ((4, 2_100_000), (4, 524_288))),
    "drift": Traffic((5.0, 40.0, 60.0), ((4, 2_100_000), (4, 524_288))),
    "tiny": Traffic((50.0, 300.0, 450.0), ((4, 2_100_000), (4, 524_288))),
    "mixed": Traffic((0.5, 4.0, 6.0), ((4, 2_100_000), (4, 1_000_000))),
}
GATEWAYS = (1, 2, 4, 8)
SYNC_SECONDS = (0.05, 0.5)
"""Delays with which a gateway hears of what the others have sent."""


def trials(quick: bool, seeds: Sequence[int], others: Sequence[Path] = ()) -> Iterator[Trial]:
    """Yield all trials, or with `quick` the first quarter of each; `others` are further traces."""
    traffic = dict(TRAFFIC)
    for path in others:
        traffic[path.stem] = replace(TRAFFIC["conversation"], path=path)
    for name, kind in traffic.items():
        for workers, kv_tokens in kind.fleets:
            for load in kind.loads:
                source = kind.source(name, load, quick=quick)
                group = f"{name} x{load:g}, {workers} workers of {kv_tokens // 1000}k"
                yield from _table(group, source, Scenario(workers=workers, kv_tokens=kv_tokens), seeds)
    for name, kind in traffic.items():
        yield from _gateways(name, kind, quick, seeds)


def _table(group: str, source: TraceSource, scenario: Scenario, seeds: Sequence[int]) -> Iterator[Trial]:
    for seed in seeds:
        for subject in (*contender_names(), *LIMITS):
            yield Trial(subject=subject, source=source, scenario=scenario, seed=seed, group=group)
        for subject in IN_ITS_TURN:
            yield Trial(
                subject=subject,
                source=source,
                scenario=replace(scenario, **QUEUED),
                seed=seed,
                group=group,
                name=f"{subject}, queued",
            )


def _gateways(name: str, kind: Traffic, quick: bool, seeds: Sequence[int]) -> Iterator[Trial]:
    """Yield trials of several gateways, each of which knows its own dispatches at once."""
    (workers, kv_tokens), load = kind.fleets[0], kind.loads[1]
    source = kind.source(name, load, quick=quick)
    group = f"{name} x{load:g}, {workers} workers of {kv_tokens // 1000}k, several gateways"
    for seed in seeds:
        for count in GATEWAYS:
            for late in SYNC_SECONDS if count > 1 else (0.0,):
                scenario = Scenario(workers=workers, kv_tokens=kv_tokens, gateways=count, sync_seconds=late)
                for label, changes in (("cost", {}), ("cost, queued", QUEUED)):
                    yield Trial(
                        subject="cost",
                        source=source,
                        scenario=replace(scenario, **changes),
                        seed=seed,
                        group=group,
                        name=f"{label}, {count} gateways, {1000 * late:g} ms late" if count > 1 else label,
                    )
