"""The mixes on simulated engines, with the real queue policies in the simulated gateway."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import compress
from math import ceil
from typing import Any

from policies.simulation.contenders import contender
from policies.simulation.known_blocks import BlockPaths
from policies.simulation.least_ttft import least_ttft
from policies.simulation.least_when_busy import least_ttft_when_busy
from policies.simulation.outcome import RunResult, summary
from policies.simulation.scenario import Scenario
from policies.simulation.simulation import Simulation
from policies.simulation.trace import TraceRequest
from policies.simulation.turns.queue_rule import REQUESTS, QueueRule
from tests.benchmarks.fairness.mixes import MIXES, Mix
from tests.benchmarks.fairness.shares import evenness

WORKERS, KV_TOKENS, WINDOW_TOKENS = 4, 2_100_000, 16_384
ENGINES_FIFO = "fifo in the engines"
ALONE = "victims alone"
APART = "a worker for the victims"
"""One worker serves the victims alone, the rest the others: what a low TTFT costs in work a second."""
POLICIES: dict[str, tuple[QueueRule | None, int]] = {
    ENGINES_FIFO: (None, 0),
    "fifo": (QueueRule(across="fifo", within="fcfs"), WINDOW_TOKENS),
    "sfq by requests": (QueueRule(across=REQUESTS, within="fcfs"), WINDOW_TOKENS),
    "sfq": (QueueRule(across="sfq", within="fcfs"), WINDOW_TOKENS),
    "sfq, hrrn": (QueueRule(across="sfq", within="hrrn"), WINDOW_TOKENS),
    "sfq, window of 8k": (QueueRule(across="sfq", within="fcfs"), WINDOW_TOKENS // 2),
    "vtc": (QueueRule(across="vtc", within="fcfs"), WINDOW_TOKENS),
    "dlpm": (QueueRule(across="dlpm", within="fcfs"), WINDOW_TOKENS),
}
"""The queue policies and windows. `fifo in the engines`: everything is sent at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    mix: str
    policy: str
    seconds: float

    def figures(self) -> dict[str, Any]:
        """Return figures of all tenants, the victims and the others; the duration, and the evenness."""
        mix = MIXES[self.mix](self.seconds)
        result = self._played(mix)
        victims = {request.tenant for request in mix.victims}
        arrived = max(request.at for request in mix.all)
        work = sum(result.computed_tokens) + sum(2 * o.output_tokens for o in result.outcomes)
        of_victims = [one for one in result.outcomes if one.tenant in victims]
        times = Scenario(workers=WORKERS, kv_tokens=KV_TOKENS).times
        least = [one.ttft for one in least_ttft(mix.all, times, workers=WORKERS).outcomes]
        when_busy = least_ttft_when_busy(mix.all, times, workers=WORKERS)
        is_victim = [request.tenant in victims for request in mix.all]
        return {
            "all": summary(result.outcomes)
            | {
                "seconds": result.seconds,
                "units_per_second": work / result.seconds,
                "evenness": evenness(result.outcomes, mix.weights, arrived),
            },
            "tenants": {
                "victims": summary(of_victims)
                | quantiles("bound", list(compress(least, is_victim)))
                | quantiles("busy", list(compress(when_busy, is_victim)))
                | quantiles("first", [one.soonest_ttft for one in of_victims]),
                "others": summary([one for one in result.outcomes if one.tenant not in victims]),
            },
        }

    def _played(self, mix: Mix) -> RunResult:
        if self.policy == APART:
            return _beside_each_other(
                self._of(list(mix.victims), mix, workers=1),
                self._of(list(mix.others), mix, workers=WORKERS - 1),
            )
        return self._of(list(mix.victims) if self.policy == ALONE else mix.all, mix, workers=WORKERS)

    def _of(self, trace: list[TraceRequest], mix: Mix, *, workers: int) -> RunResult:
        rule, window_tokens = POLICIES.get(self.policy, POLICIES["sfq"])
        if rule is not None:
            rule = QueueRule(across=rule.across, within=rule.within, weights=mix.weights)
        scenario = Scenario(
            workers=workers,
            kv_tokens=KV_TOKENS,
            window_tokens=window_tokens or None,
            turns=rule,
        )
        return Simulation(trace, contender("cost", {}), scenario, paths=BlockPaths(trace), bounds=True).run()


def _beside_each_other(one: RunResult, other: RunResult) -> RunResult:
    """Return the result of two fleets that serve their requests at the same time."""
    return RunResult(
        outcomes=one.outcomes + other.outcomes,
        seconds=max(one.seconds, other.seconds),
        computed_tokens=one.computed_tokens + other.computed_tokens,
        busy_seconds=one.busy_seconds + other.busy_seconds,
    )


def quantiles(name: str, seconds: Sequence[float | None]) -> dict[str, float]:
    """Return the median and p99 of these times in milliseconds, as figures with this name."""
    ms = sorted(1000 * each for each in seconds if each is not None)
    return {f"{name}_ms_p{percent}": ms[ceil(percent / 100 * len(ms)) - 1] for percent in (50, 99)}


def runs(mixes: list[str], seconds: float, processes: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the figures by mix and policy."""
    wanted = [
        Run(mix=mix, policy=policy, seconds=seconds) for mix in mixes for policy in (ALONE, *POLICIES, APART)
    ]
    found: dict[str, dict[str, dict[str, Any]]] = {mix: {} for mix in mixes}
    with ProcessPoolExecutor(processes) as pool:
        for run, figures in zip(wanted, pool.map(Run.figures, wanted), strict=True):
            found[run.mix][run.policy] = figures
    for of in found.values():
        for figures in of.values():
            _beside(figures, of[ALONE], of[ENGINES_FIFO])
    return found


def _beside(figures: dict[str, Any], alone: dict[str, Any], fifo: dict[str, Any]) -> None:
    victims, before = figures["tenants"]["victims"], alone["tenants"]["victims"]
    for percent in (50, 99):
        name = f"ttft_ms_p{percent}"
        victims[f"{name}_ratio_to_alone"] = victims[name] / before[name]
        for bound in ("bound", "busy"):
            victims[f"{bound}_p{percent}_ratio_to_alone"] = victims[f"{bound}_ms_p{percent}"] / before[name]
    figures["all"]["units_per_second_ratio_to_fifo"] = (
        figures["all"]["units_per_second"] / fifo["all"]["units_per_second"]
    )
