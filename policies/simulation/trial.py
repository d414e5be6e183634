"""Trial: one policy or limit, on a trace, in a scenario, with a seed; the unit of work of a process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from policies.registry import PolicyError
from policies.simulation.contenders import contender
from policies.simulation.engines.shared_cache import SharedCache, SharedCacheIndex
from policies.simulation.known_blocks import BlockPaths
from policies.simulation.least_ttft import least_ttft
from policies.simulation.outcome import RunResult
from policies.simulation.scenario import FleetAction, FleetChange, Scenario
from policies.simulation.simulation import Simulation
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest, isolated, paced, read_trace
from policies.simulation.workloads import WorkloadParameters, generated

POOLED, ALONE = "pooled", "alone"
LIMITS = (POOLED, ALONE)
"""What policies are compared with: one cache for all workers (shared_cache.py), a lower bound (least_ttft.py)."""
LEAST_TTFT = {"backlog_ms": 1e9, "delay_weight": 0.0, "memory_weight": 0.0, "tie": 0.0}
"""Options that make the policy `cost` the estimated TTFT alone, by which `pooled` is routed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSource:
    """Where a trace comes from: a file, or a generated workload."""

    path: Path | None = None
    workload: str = ""
    load: WorkloadParameters = field(default_factory=WorkloadParameters)
    speed: float = 1.0
    """How many times as fast as recorded the trace is played."""
    requests_max: int | None = None
    """Take only the first so many requests of a file."""
    isolates: bool = False
    """Whether tenants share no blocks."""

    def trace(self, seed: int) -> list[TraceRequest]:
        """Return the requests as they are replayed with this seed. Raises TraceInvalid."""
        if self.path is None:
            requests: Sequence[TraceRequest] = generated(self.workload, replace(self.load, seed=seed))
        else:
            requests = _read(self.path)[: self.requests_max]
        if self.isolates:
            requests = isolated(requests)
        return paced(requests, speed=self.speed, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of a simulation, as it is handed to a process."""

    subject: str
    """What is tried: `name` or `name:option=value,option=value` of a policy, or one of LIMITS."""
    source: TraceSource
    scenario: Scenario
    seed: int = 0
    group: str = ""
    """Heading under which the result is printed."""
    name: str = ""
    """Name under which the result is printed; empty: the subject."""

    @property
    def label(self) -> str:
        """The name under which the result is printed."""
        return self.name or self.subject

    def run(self, progress: Callable[[int], None] | None = None) -> RunResult:
        """Simulate the trial; `progress` is called with the number of further arrivals."""
        scenario = self.scenario
        trace, paths = _traced(self.source, self.seed)
        if self.subject == ALONE:
            fastest = scenario.times.at_speed(max(scenario.speeds)) if scenario.speeds else scenario.times
            return least_ttft(trace, fastest, workers=scenario.workers, classes=scenario.classes)
        if self.subject != POOLED:
            simulation = Simulation(
                trace,
                policy_of(self.subject),
                scenario,
                seed=self.seed,
                paths=paths,
            )
            return simulation.run(progress)
        blocks = scenario.kv_tokens // BLOCK_TOKENS
        cache = SharedCache(scenario.workers * blocks)
        simulation = Simulation(
            trace,
            contender("cost", LEAST_TTFT),
            # One gateway with exact loads, and workers that never restart.
            replace(
                scenario,
                gateways=1,
                cells=1,
                event_seconds=0.0,
                event_loss=0.0,
                window_tokens=None,
                turns=None,
                changes=(),
            ),
            seed=self.seed,
            paths=paths,
            caches=[cache] * scenario.workers,
            known=SharedCacheIndex(cache, scenario.workers),
        )
        return simulation.run(progress)


def policy_of(subject: str) -> Any:
    """Return the policy of a subject `name:option=value,...`. Raises PolicyError."""
    name, _, text = subject.partition(":")
    options = {}
    for assignment in text.split(",") if text else ():
        option, equals, value = assignment.partition("=")
        if not equals:
            raise PolicyError(f"{subject!r}: {assignment!r} is not OPTION=VALUE")
        options[option.strip()] = value.strip()
    return contender(name.strip(), options)


def restarts(
    workers: int, *, every_seconds: float, for_seconds: float, until: float
) -> tuple[FleetChange, ...]:
    """Return changes that kill the workers in turn, each for a while, and bring them back with a cold cache."""
    changes: list[FleetChange] = []
    for number in range(int(until / every_seconds)):
        at = (number + 0.5) * every_seconds
        changes.append(FleetChange(at=at, worker=number % workers, what=FleetAction.KILL))
        changes.append(FleetChange(at=at + for_seconds, worker=number % workers, what=FleetAction.JOIN))
    return tuple(changes)


@lru_cache(maxsize=4)
def _read(path: Path) -> Sequence[TraceRequest]:
    return read_trace(path)


@lru_cache(maxsize=2)
def _traced(source: TraceSource, seed: int) -> tuple[list[TraceRequest], BlockPaths]:
    trace = source.trace(seed)
    return trace, BlockPaths(trace)
