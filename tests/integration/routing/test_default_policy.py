"""The default policy loses to no shipped rule: a fixed subset of `make bench-routing`, in simulated fleets."""

import pytest

from policies.registry import routing_names
from policies.simulation.outcome import averaged, figures
from policies.simulation.scenario import Scenario
from policies.simulation.trial import TraceSource, Trial
from policies.simulation.workloads import WorkloadParameters
from tests.benchmarks.routing.settings import CLAUDE_CODE, CONVERSATIONS, QUEUED

BEHIND_MAX = 0.05
SEEDS = (0, 1, 2)


def workload(kind, rate, requests):
    return TraceSource(workload=kind, load=WorkloadParameters(requests=requests, rate=rate))


ROWS = {
    "conversation": (TraceSource(path=CONVERSATIONS, speed=3.0, requests_max=700), 4, 2_100_000),
    "claude code": (TraceSource(path=CLAUDE_CODE, speed=3.0, requests_max=600), 8, 1_000_000),
    "teams": (workload("teams", 1.0, 600), 4, 2_100_000),
    "giant": (workload("giant", 40.0, 600), 4, 1_000_000),
    "stampede": (workload("stampede", 8.0, 600), 4, 1_000_000),
    "drift": (workload("drift", 40.0, 600), 4, 524_288),
    "tiny": (workload("tiny", 300.0, 800), 4, 524_288),
}


def measured(subject, source, workers, kv_tokens, changes):
    scenario = Scenario(workers=workers, kv_tokens=kv_tokens, **changes)
    runs = [Trial(subject=subject, source=source, scenario=scenario, seed=seed).run() for seed in SEEDS]
    return averaged([figures(run) for run in runs])["all"]


@pytest.mark.parametrize("queued", [False, True], ids=["sent at once", "queued"])
@pytest.mark.parametrize("row", ROWS)
def test_the_default_policy_is_hardly_behind_the_best_of_all_rules(row, queued):
    changes = QUEUED if queued else {}
    found = {rule: measured(rule, *ROWS[row], changes) for rule in routing_names()}
    ttft = {rule: each["ttft_ms_mean"] for rule, each in found.items()}
    goodput = {rule: each["goodput"] for rule, each in found.items()}
    assert ttft["cost"] <= (1 + BEHIND_MAX) * min(ttft.values()), ttft
    assert goodput["cost"] >= (1 - BEHIND_MAX) * max(goodput.values()), goodput
