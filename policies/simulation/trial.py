"""One trial: a contender or a limit, on a trace, in a scenario, with a seed. What processes hand to one another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from policies.registry import PolicyError
from policies.simulation.contenders import contender
from policies.simulation.known_blocks import BlockPaths
from policies.simulation.outcome import RunResult
from policies.simulation.scenario import Change, Happening, Scenario
from policies.simulation.shared_cache import HeldByAll, SharedCache, Workplace
from policies.simulation.simulation import Simulation
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest, paced, read_trace
from policies.simulation.workloads import Load, generated

LIMITS = ("pooled_kv", "pooled", "infinite")
LEAST_TTFT = {"price_max": 0.0, "harm": 0.0, "decode_weight": 0.0, "tie": 0.0}
"""`cost` with these options is estimated TTFT alone, by which the limits are routed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a trace comes from: a file, or a generated workload. `requests_max`: the first so many."""

    path: Path | None = None
    workload: str = ""
    load: Load = field(default_factory=Load)
    speed: float = 1.0
    requests_max: int | None = None

    def trace(self, seed: int) -> list[TraceRequest]:
        """As it is replayed with this seed. Raises TraceInvalid."""
        if self.path is None:
            requests = generated(self.workload, replace(self.load, seed=seed))
            return paced(requests, speed=self.speed, seed=seed)
        return paced(_read(self.path)[: self.requests_max], speed=self.speed, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """`subject`: `name` or `name:option=value,option=value`, or one of LIMITS. `group`, `name`: what
    to print it under."""

    subject: str
    source: Source
    scenario: Scenario
    seed: int = 0
    group: str = ""
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or self.subject

    def run(self, progress: Callable[[int], None] | None = None) -> RunResult:
        scenario = self.scenario
        trace, paths = _traced(self.source, self.seed)
        if self.subject not in LIMITS:
            simulation = Simulation(
                trace,
                policy_of(self.subject),
                scenario,
                seed=self.seed,
                paths=paths,
            )
            return simulation.run(progress)
        blocks = scenario.kv_tokens // BLOCK_TOKENS
        cache = SharedCache(None if self.subject == "infinite" else scenario.workers * blocks)
        admits = self.subject == "pooled_kv"
        simulation = Simulation(
            trace,
            contender("cost", LEAST_TTFT),
            # One gateway that knows everything, and workers that stay.
            replace(
                scenario,
                gateways=1,
                event_seconds=0.0,
                event_loss=0.0,
                window_tokens=None,
                turns=None,
                changes=(),
            ),
            seed=self.seed,
            paths=paths,
            caches=[Workplace(cache, blocks) if admits else cache for _ in range(scenario.workers)],
            known=HeldByAll(cache, scenario.workers),
        )
        return simulation.run(progress)


def policy_of(subject: str) -> Any:
    """Of `name:option=value,...`. Raises PolicyError."""
    name, _, text = subject.partition(":")
    options = {}
    for assignment in text.split(",") if text else ():
        option, equals, value = assignment.partition("=")
        if not equals:
            raise PolicyError(f"{subject!r}: {assignment!r} is not OPTION=VALUE")
        options[option.strip()] = value.strip()
    return contender(name.strip(), options)


def restarts(workers: int, *, every_seconds: float, for_seconds: float, until: float) -> tuple[Change, ...]:
    """Churn: the workers in turn are killed, each for so long, and come back cold."""
    changes: list[Change] = []
    for number in range(int(until / every_seconds)):
        at = (number + 0.5) * every_seconds
        changes.append(Change(at=at, worker=number % workers, what=Happening.KILL))
        changes.append(Change(at=at + for_seconds, worker=number % workers, what=Happening.JOIN))
    return tuple(changes)


@lru_cache(maxsize=4)
def _read(path: Path) -> Sequence[TraceRequest]:
    return read_trace(path)


@lru_cache(maxsize=2)
def _traced(source: Source, seed: int) -> tuple[list[TraceRequest], BlockPaths]:
    trace = source.trace(seed)
    return trace, BlockPaths(trace)
