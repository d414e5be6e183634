"""Whole simulated runs: what must hold whatever the policy, and what single parts of a scenario do."""

from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from policies.simulation.contenders import contender, contender_names
from policies.simulation.outcome import figures, imbalance, summary
from policies.simulation.scenario import FleetAction, FleetChange, Scenario
from policies.simulation.simulation import Simulation
from policies.simulation.trace import TraceRequest, ideal_hit_ratio
from policies.simulation.trial import POOLED, TraceSource, Trial, restarts
from policies.simulation.turns.queue_rule import RELEASE_WINDOW_TOKENS, QueueRule
from policies.simulation.workloads import WORKLOADS, WorkloadParameters

CONVERSATIONS = Path(__file__).parents[3] / "data" / "mooncake" / "conversation_trace.jsonl"
SCENARIO = Scenario(workers=3, kv_tokens=400_000)
CHATS = TraceSource(workload="mixed", load=WorkloadParameters(requests=250, rate=4.0))


def trial(subject: str = "cost", seed: int = 0, source: TraceSource = CHATS, **changes) -> Trial:
    return Trial(subject=subject, source=source, scenario=replace(SCENARIO, **changes), seed=seed)


def request(at: float, tokens: int = 1024, output: int = 5, first_block: int = 0) -> TraceRequest:
    blocks = array("Q", range(first_block, first_block - (-tokens // 512)))
    return TraceRequest(at=at, prompt_tokens=tokens, output_tokens=output, blocks=blocks)


def played(trace, scenario=SCENARIO, policy="cost"):
    return Simulation(trace, contender(policy, {}), scenario).run()


@pytest.mark.parametrize("subject", [*contender_names(), POOLED])
def test_every_request_is_answered_and_the_figures_add_up(subject):
    result = trial(subject).run()
    assert all(outcome.error is None for outcome in result.outcomes)
    assert all(o.arrived_at < o.first_at <= o.last_at for o in result.outcomes)
    every = figures(result)["all"]
    assert every["requests"] == 250
    computed = sum(result.computed_tokens)
    assert computed == every["prompt_tokens"] - every["cached_tokens"]
    assert 0 < every["hit_ratio"] <= ideal_hit_ratio(CHATS.trace(0))
    assert every["ttft_ms_p50"] <= every["ttft_ms_p90"] <= every["ttft_ms_p99"]


@pytest.mark.parametrize("subject", ["cost", "chwbl", "pooled"])
def test_the_same_seed_gives_the_same_run_and_another_another(subject):
    changes = {"gateways": 3, "sync_seconds": 0.05, "event_seconds": 0.1, "event_loss": 0.1}
    assert trial(subject, **changes).run() == trial(subject, **changes).run()
    assert trial(subject, **changes).run() != trial(subject, seed=1, **changes).run()


def test_policies_rank_on_the_public_trace_as_published():
    """Rules that know the prefix beat those that do not, and no rule beats one cache for all by hits."""
    source = TraceSource(path=CONVERSATIONS, speed=3.0, requests_max=1500)
    scenario = Scenario(workers=4, kv_tokens=2_100_000)
    runs = {
        name: summary(Trial(subject=name, source=source, scenario=scenario).run().outcomes)
        for name in ("pooled", "cost", "product", "least_work", "round_robin")
    }
    ttft = {name: run["ttft_ms_mean"] for name, run in runs.items()}
    hits = {name: run["hit_ratio"] for name, run in runs.items()}
    assert ttft["pooled"] < ttft["cost"] < ttft["product"] < ttft["least_work"] < ttft["round_robin"]
    assert hits["pooled"] > hits["cost"] > hits["product"] > hits["least_work"]
    assert runs["cost"]["goodput"] > runs["round_robin"]["goodput"]


@pytest.mark.parametrize(
    "source",
    [
        *(TraceSource(workload=kind, load=WorkloadParameters(requests=250, rate=0.1)) for kind in WORKLOADS),
        TraceSource(path=CONVERSATIONS, speed=0.25, requests_max=400),
    ],
    ids=[*WORKLOADS, "conversation"],
)
def test_an_idle_fleet_serves_cost_hardly_slower_than_round_robin(source):
    for gateways in (1, 3):
        runs = [
            figures(trial(name, source=source, gateways=gateways, sync_seconds=0.05).run())["all"]
            for name in ("cost", "round_robin")
        ]
        # Half of a stampede's requests come before its prefix is computed: its median jumps between the halves.
        figure = "ttft_ms_mean" if source.workload == "stampede" else "ttft_ms_p50"
        assert runs[0][figure] <= 1.05 * runs[1][figure]


def test_tiny_prompts_on_many_workers_are_served_as_fast_by_cost_as_by_round_robin():
    """An engine's step takes its time whatever its tokens, so a worker that has just got one is not free."""
    load = WorkloadParameters(requests=600, rate=400.0)
    source = TraceSource(workload="tiny", load=load)
    cost, even = (
        figures(trial(name, source=source, workers=12).run())["all"]["ttft_ms_mean"]
        for name in ("cost", "round_robin")
    )
    assert cost <= 1.03 * even


def test_a_prompt_that_no_worker_could_hold_is_refused_and_the_others_are_served():
    result = played([request(0, tokens=500_000), request(1)])
    assert [outcome.error for outcome in result.outcomes] == ["context_length_exceeded", None]


def test_a_prefix_on_its_way_is_followed_to_its_worker():
    """The second comes while the first is computed: no event has told of it yet."""
    result = played([request(0, tokens=6000), request(0.1, tokens=6000)])
    first, second = result.outcomes
    assert first.worker == second.worker
    assert (first.cached_tokens, second.cached_tokens > 0) == (0, True)


def test_a_prefix_is_forgotten_once_it_was_evicted():
    small = Scenario(workers=1, kv_tokens=8 * 512)
    others = [request(10.0 * at, tokens=3000, first_block=100 * at) for at in range(1, 4)]
    result = played([request(0, tokens=3000), *others, request(60, tokens=3000)], small)
    assert result.outcomes[-1].cached_tokens == 0
    assert result.predicted_tokens == 0


def test_lost_events_cost_hits_and_nothing_else():
    whole, lossy = (figures(trial(event_loss=loss).run())["all"] for loss in (0.0, 0.9))
    assert lossy["errors"] == 0
    assert lossy["hit_ratio"] < whole["hit_ratio"]


def test_gateways_that_never_report_their_loads_learn_of_one_another_from_the_index_and_only_from_it():
    source = TraceSource(path=CONVERSATIONS, speed=3.0, requests_max=1000)
    scenario = Scenario(workers=6, kv_tokens=1_000_000, gateways=6)
    together, by_index, apart = (
        figures(Trial(subject="cost", source=source, scenario=replace(scenario, **news)).run())["all"]
        for news in ({}, {"sync_seconds": None}, {"sync_seconds": None, "event_seconds": 2.0})
    )
    assert by_index["ttft_ms_mean"] < 1.03 * together["ttft_ms_mean"]
    assert apart["ttft_ms_mean"] > 1.1 * together["ttft_ms_mean"]


def test_what_a_dying_worker_had_not_begun_to_answer_is_answered_by_another():
    long, pair = request(0, tokens=60_000), Scenario(workers=2, kv_tokens=400_000)
    (alone,) = played([long], pair).outcomes
    kill = FleetChange(at=0.5, worker=alone.worker, what=FleetAction.KILL)
    (outcome,) = played([long], replace(pair, changes=(kill,))).outcomes
    assert (outcome.error, outcome.attempts) == (None, 2)
    assert outcome.worker != alone.worker


def test_a_stream_that_had_begun_breaks_with_its_worker():
    kill = FleetChange(at=5.0, worker=0, what=FleetAction.KILL)
    (outcome,) = played(
        [request(0, output=5000)], Scenario(workers=1, kv_tokens=400_000, changes=(kill,))
    ).outcomes
    assert (outcome.error, outcome.first_at is None) == ("stream_interrupted", False)


def test_a_worker_that_comes_back_has_nothing_and_is_used_again():
    changes = (
        FleetChange(at=5.0, worker=0, what=FleetAction.KILL),
        FleetChange(at=6.0, worker=0, what=FleetAction.JOIN),
    )
    result = played(
        [request(0), request(5.5), request(7), request(8)],
        Scenario(workers=1, kv_tokens=400_000, changes=changes),
    )
    assert [outcome.error for outcome in result.outcomes] == [None, "no_worker", None, None]
    assert [outcome.cached_tokens for outcome in result.outcomes] == [0, 0, 0, 1023]


def test_a_draining_worker_ends_what_it_has_and_gets_nothing_new():
    changes = (FleetChange(at=1.0, worker=0, what=FleetAction.DRAIN),)
    result = played(
        [request(0, output=500), request(2, first_block=50)],
        Scenario(workers=1, kv_tokens=400_000, changes=changes),
    )
    assert [outcome.error for outcome in result.outcomes] == [None, "no_worker"]


def test_under_churn_everything_ends_and_what_is_counted_returns_to_nothing():
    changes = restarts(3, every_seconds=8, for_seconds=5, until=60)
    source = replace(CHATS, load=replace(CHATS.load, rate=8.0))
    # Later than most first tokens: what comes late must still be taken back in full.
    for extra in ({}, {"window_tokens": 16_384}, {"gateways": 2, "sync_seconds": 0.5}):
        simulation_trial = trial(source=source, changes=changes, **extra)
        trace = source.trace(0)
        simulation = Simulation(trace, contender("cost", {}), simulation_trial.scenario)
        result = simulation.run()
        assert all((o.last_at is not None) != (o.error is not None) for o in result.outcomes)
        for gateway in simulation._gateways:
            for worker in range(3):
                snapshot = gateway.view.snapshot(worker, 1e9)
                assert (snapshot.tokens_queued, snapshot.streams, snapshot.kv_tokens) == (0, 0, 0)


def test_held_requests_wait_for_their_best_worker_and_all_go_in_the_end():
    source = TraceSource(path=CONVERSATIONS, speed=2.0, requests_max=1000)
    scenario = Scenario(workers=4, kv_tokens=350_000)
    runs = [
        figures(Trial(subject="cost", source=source, scenario=each).run())["all"]
        for each in (scenario, replace(scenario, window_tokens=24_000, waiting_order="shortest"))
    ]
    assert [run["errors"] for run in runs] == [0, 0]
    assert runs[1]["ttft_ms_mean"] < runs[0]["ttft_ms_mean"]


def test_imbalance_is_the_most_over_the_mean():
    assert imbalance((1, 1, 4)) == 2
    assert imbalance((0, 0)) is None


def test_one_tenant_alone_waits_no_longer_in_its_turn_than_if_all_were_sent_at_once():
    source = TraceSource(path=CONVERSATIONS, speed=3.0, requests_max=3000)
    at_once = Scenario(workers=4, kv_tokens=2_100_000)
    in_turn = replace(at_once, window_tokens=RELEASE_WINDOW_TOKENS, turns=QueueRule())
    means = [
        summary(Trial(subject="cost", source=source, scenario=scenario).run().outcomes)["ttft_ms_mean"]
        for scenario in (at_once, in_turn)
    ]
    assert means[1] < 1.02 * means[0]


def test_loads_that_come_half_a_second_late_cost_a_queue_of_all_gateways_next_to_nothing():
    source = TraceSource(workload="giant", load=WorkloadParameters(requests=400, rate=40.0))
    queued = Scenario(workers=4, kv_tokens=2_100_000, window_tokens=RELEASE_WINDOW_TOKENS, turns=QueueRule())
    late = replace(queued, gateways=8, sync_seconds=0.5)
    of_one, of_eight = (
        figures(Trial(subject="cost", source=source, scenario=each).run())["all"]["ttft_ms_mean"]
        for each in (queued, late)
    )
    assert of_eight <= 1.08 * of_one


@pytest.mark.parametrize(
    "source",
    [
        TraceSource(path=CONVERSATIONS, speed=3.0, requests_max=1000),
        TraceSource(workload="giant", load=WorkloadParameters(requests=400, rate=40.0)),
    ],
)
def test_loads_that_come_half_a_second_late_cost_less_than_5_percent(source):
    scenario = Scenario(workers=4, kv_tokens=2_100_000)
    late = replace(scenario, gateways=8, sync_seconds=0.5)
    at_once, later = (
        figures(Trial(subject="cost", source=source, scenario=each).run())["all"]["ttft_ms_mean"]
        for each in (scenario, late)
    )
    assert later <= 1.05 * at_once


def test_unequal_workers_take_work_by_their_speed_whether_they_are_rated_or_learnt():
    for rated in (True, False):
        computed = trial(speeds=(0.5, 1.0), speeds_rated=rated).run().computed_tokens
        assert computed[0] < min(computed[1:])
