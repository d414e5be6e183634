"""Whether the default policy is behind a shipped rule on a fixed, quick subset of `make bench-routing`.

All rules run on the first seed. Those that are behind the default there by a tenth or more will not be ahead of it
by 5 % in the mean of all seeds: only the others run on the further seeds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.registry import routing_names
from policies.simulation.outcome import averaged, figures
from policies.simulation.scenario import Scenario
from policies.simulation.trial import TraceSource, Trial
from policies.simulation.workloads import WorkloadParameters
from tests.benchmarks.routing.settings import CLAUDE_CODE, CONVERSATIONS, QUEUED

DEFAULT = "cost"
BEHIND_MAX = 0.05
"""How far the default may be behind the best rule in mean TTFT and in goodput."""

SEEDS = (0, 1, 2)
CLOSE = 0.1
"""Share by which a rule may be worse than the default on the first seed for it to run on the others."""


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """One row of the check: traffic on a fleet."""

    source: TraceSource
    workers: int
    kv_tokens: int

    def trial(self, rule: str, seed: int, *, queued: bool) -> Trial:
        """Return the trial of one rule; `queued`: behind the gateway's queue."""
        changes = QUEUED if queued else {}
        scenario = Scenario(workers=self.workers, kv_tokens=self.kv_tokens, **changes)
        return Trial(subject=rule, source=self.source, scenario=scenario, seed=seed)


def _workload(kind: str, rate: float, requests: int) -> TraceSource:
    return TraceSource(workload=kind, load=WorkloadParameters(requests=requests, rate=rate))


ROWS: Mapping[str, CheckedRow] = {
    "conversation": CheckedRow(TraceSource(path=CONVERSATIONS, speed=3.0, requests_max=500), 4, 2_100_000),
    "claude code": CheckedRow(TraceSource(path=CLAUDE_CODE, speed=3.0, requests_max=400), 8, 1_000_000),
    "teams": CheckedRow(_workload("teams", 1.0, 400), 4, 2_100_000),
    "giant": CheckedRow(_workload("giant", 40.0, 400), 4, 1_000_000),
    # Four stampedes: with two of them rules differ by chance by as much as the check allows.
    "stampede": CheckedRow(_workload("stampede", 8.0, 800), 4, 1_000_000),
    "drift": CheckedRow(_workload("drift", 40.0, 400), 4, 524_288),
    "tiny": CheckedRow(_workload("tiny", 300.0, 500), 4, 524_288),
}


def measured(row: CheckedRow, *, queued: bool) -> dict[str, dict[str, Any]]:
    """Return the figures of the default, and of all rules that may be ahead of it."""
    runs = {rule: [figures(row.trial(rule, SEEDS[0], queued=queued).run())] for rule in routing_names()}
    first = {rule: of[0]["all"] for rule, of in runs.items()}
    close = [rule for rule in runs if rule == DEFAULT or _is_close(first[rule], first[DEFAULT])]
    for rule in close:
        runs[rule] += [figures(row.trial(rule, seed, queued=queued).run()) for seed in SEEDS[1:]]
    return {rule: averaged(runs[rule])["all"] for rule in close}


def _is_close(one: Mapping[str, Any], default: Mapping[str, Any]) -> bool:
    """Return whether a rule may be ahead of the default by BEHIND_MAX; no goodput is above 1."""
    if one["ttft_ms_mean"] <= (1 + CLOSE) * default["ttft_ms_mean"]:
        return True
    return bool(default["goodput"] < 1.01 - BEHIND_MAX and one["goodput"] > (1 - CLOSE) * default["goodput"])


def shortfalls(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what the default is behind in."""
    ttft = {rule: each["ttft_ms_mean"] for rule, each in found.items()}
    goodput = {rule: each["goodput"] for rule, each in found.items()}
    fastest, best = min(ttft, key=ttft.__getitem__), max(goodput, key=goodput.__getitem__)
    if ttft[DEFAULT] > (1 + BEHIND_MAX) * ttft[fastest]:
        yield f"mean TTFT {ttft[DEFAULT]:.0f} ms, {fastest} {ttft[fastest]:.0f} ms"
    if goodput[DEFAULT] < (1 - BEHIND_MAX) * goodput[best]:
        yield f"goodput {goodput[DEFAULT]:.3f}, {best} {goodput[best]:.3f}"


def checked(asked: tuple[str, bool]) -> list[str]:
    """Return what the default is behind in on one row, sent at once or queued."""
    name, queued = asked
    how = "queued" if queued else "sent at once"
    return [f"{name}, {how}: {each}" for each in shortfalls(measured(ROWS[name], queued=queued))]


def all_rows() -> Sequence[tuple[str, bool]]:
    """Return every row, sent at once and queued."""
    return [(name, queued) for name in ROWS for queued in (False, True)]
