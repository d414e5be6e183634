"""Service classes and floods in the simulator: what interactive classes and victims keep, in virtual time."""

from array import array
from collections import Counter
from itertools import count
from math import ceil
from random import Random

import pytest
from msgspec.structs import replace

from policies.admission.dispatch_window import DispatchWindow
from policies.service_class import BATCH, CHAT, CODE, VOICE
from policies.simulation.class_lengths import INTERACTIVE, long_answers, long_batch, short_batch
from policies.simulation.contenders import contender
from policies.simulation.outcome import summary
from policies.simulation.scenario import Scenario
from policies.simulation.simulation import Simulation
from policies.simulation.trace import TraceRequest
from policies.simulation.turns.queue_rule import RELEASE_WINDOW_TOKENS, QueueRule
from policies.simulation.turns.turn_taking import TurnTaking
from policies.simulation.workloads import WorkloadParameters, generated

CLASSES = {each.name: each for each in (VOICE, CODE, CHAT, BATCH)}
FIXED = DispatchWindow(narrow=RELEASE_WINDOW_TOKENS, wide=RELEASE_WINDOW_TOKENS)

RATE = 54.0
"""Voice, code and chat requests a second: 70 % of what two workers can do of them."""

numbers = count(1)


def request(at, tokens, output=20, **more):
    first = next(numbers) << 32
    blocks = array("Q", range(first, first + ceil(tokens / 512)))
    return TraceRequest(at=at, prompt_tokens=tokens, output_tokens=output, blocks=blocks, **more)


def of_all_classes(seconds, seed, batch, batch_rate):
    """Return voice, code and chat, and twice as much batch work as they leave."""
    random, at, found = Random(seed), 0.0, []
    while (at := at + random.expovariate(RATE)) < seconds:
        name = random.choice(tuple(INTERACTIVE))
        found.append(request(at, *INTERACTIVE[name](random), tenant="t", service_class=name))
    at = 0.0
    while (at := at + random.expovariate(batch_rate)) < seconds:
        found.append(request(at, *batch(random), tenant="t", service_class=BATCH.name))
    return sorted(found, key=lambda one: one.at)


def played(trace, workers, *, classes=None, rule=None):
    scenario = Scenario(
        workers=workers,
        kv_tokens=2_100_000,
        window_tokens=RELEASE_WINDOW_TOKENS,
        turns=rule or QueueRule(),
        classes=classes or {},
    )
    return Simulation(trace, contender("cost", {}), scenario, bounds=True).run()


def work_computed(begin, end, result):
    """Return the cost units computed in that time: a prompt at its first token, and its answer evenly after that.

    To count requests that ended would count more where fewer run at a time.
    """
    work = 0.0
    for one in result.outcomes:
        if one.first_at is None or one.first_at >= end:
            continue
        answered = max(0.0, min(one.last_at, end) - max(one.first_at, begin))
        work += one.prompt_tokens if one.first_at >= begin else 0
        work += 2 * one.output_tokens * answered / max(one.last_at - one.first_at, 1e-9)
    return work


@pytest.mark.parametrize(
    ("batch", "batch_rate"), [(short_batch, 25.0), (long_batch, 8.0), (long_answers, 20.0)]
)
def test_classes_beside_a_flood_of_batch_work_miss_one_request_in_a_hundred_and_cost_a_twentieth_of_the_work(
    batch, batch_rate
):
    """Work is counted once the flood stands: with classes its first prompts are computed later than without."""
    requests, missed, work, work_without = Counter(), Counter(), 0.0, 0.0
    for seed in (31, 32):
        trace = of_all_classes(32.0, seed, batch, batch_rate)
        with_classes = played(trace, 2, classes=CLASSES)
        for outcome in with_classes.outcomes:
            requests[outcome.service_class] += 1
            missed[outcome.service_class] += outcome.missed
        work += work_computed(12.0, 32.0, with_classes)
        work_without += work_computed(12.0, 32.0, played(trace, 2))
    assert work > 0.95 * work_without
    # Of about 1,150 requests of each class, at most eleven.
    assert [name for name in INTERACTIVE if missed[name] > 0.01 * requests[name]] == []


def test_a_voice_request_that_cannot_be_in_time_is_refused_and_one_that_may_be_late_goes():
    trace = [
        *(request(0.5 * at, 2000, tenant="t", service_class="chat") for at in range(20)),
        request(10.0, 60_000, tenant="t", service_class="chat"),
        request(10.1, 200, tenant="t", service_class="voice"),
        request(20.0, 200, tenant="t", service_class="voice"),
    ]
    result = played(trace, 1, classes=CLASSES)
    assert [one.error for one in result.outcomes[-2:]] == ["target_missed", None]


def test_a_class_that_demotes_is_served_as_batch_work():
    trace = [
        *(request(0.5 * at, 2000, tenant="t", service_class="chat") for at in range(20)),
        request(10.0, 60_000, tenant="t", service_class="chat"),
        request(10.1, 200, tenant="t", service_class="voice"),
    ]
    demoting = CLASSES | {"voice": replace(VOICE, late="demote", sheds=False)}
    late = played(trace, 1, classes=demoting).outcomes[-1]
    assert late.error is None
    assert late.ttft > VOICE.ttft_seconds


# Floods


def with_flood(kind, seconds=24.0, seed=1):
    """Return the requests of two victims with short prompts, and those and a flood."""
    random, at, victims = Random(seed), 0.0, []
    while (at := at + random.expovariate(8.0)) < seconds:
        victims.append(request(at, random.randint(60, 800), 60, tenant=f"victim-{len(victims) % 2}"))
    rate, flood, at = (20.0, [], 4.0) if kind == "many prompts" else (3.0, [], 4.0)
    while (at := at + random.expovariate(rate)) < seconds:
        tokens = random.randint(1000, 20_000) if kind == "many prompts" else 48_000
        flood.append(request(at, tokens, 150, tenant="flood"))
    return victims, sorted([*victims, *flood], key=lambda one: one.at)


def victims_of(result):
    return [one for one in result.outcomes if one.tenant != "flood" and one.arrived_at > 8.0]


def of_victims(result):
    return summary(victims_of(result))


@pytest.mark.parametrize("kind", ["many prompts", "prompts of 48k"])
def test_a_flood_delays_a_tenant_with_little_work_hardly_longer_than_the_engines_do(kind):
    victims, all_requests = with_flood(kind)
    alone, beside = of_victims(played(victims, 4)), played(all_requests, 4)
    least = sorted(1000 * one.soonest_ttft for one in victims_of(beside))
    found = of_victims(beside)
    assert found["ttft_ms_p50"] < max(2 * alone["ttft_ms_p50"], 1.2 * least[len(least) // 2])
    assert found["ttft_ms_p99"] < max(1.3 * alone["ttft_ms_p99"], 1.5 * least[int(0.99 * len(least))])
    assert found["ttft_ms_p50"] < 2.5 * alone["ttft_ms_p50"]


def test_prompts_of_48k_that_need_not_wait_leave_a_worker_for_a_tenant_with_short_ones():
    victims, all_requests = with_flood("prompts of 48k", seed=2)
    alone, beside = of_victims(played(victims, 4)), of_victims(played(all_requests, 4))
    assert beside["ttft_ms_p99"] < 2.5 * alone["ttft_ms_p99"]


@pytest.mark.parametrize("policy", ["dlpm", "vtc"])
def test_victims_wait_hardly_longer_under_other_policies_than_under_start_time_fair_queueing(policy):
    _, trace = with_flood("many prompts")
    sfq, other = (of_victims(played(trace, 4, rule=QueueRule(across=name))) for name in ("sfq", policy))
    assert other["ttft_ms_p95"] < 1.1 * sfq["ttft_ms_p95"]


def test_the_flood_loses_hardly_any_work():
    _, trace = with_flood("many prompts")
    assert played(trace, 4).seconds < 1.05 * played(trace, 4, rule=QueueRule(across="fifo")).seconds


def test_a_single_tenant_is_given_turns_as_without_a_window_of_several(monkeypatch):
    trace = [replace(one, tenant="t") for one in with_flood("many prompts", seconds=8.0)[1]]
    before = played(trace, 4)
    monkeypatch.setattr(TurnTaking, "window", lambda self, number, now: FIXED)
    assert played(trace, 4) == before


@pytest.mark.parametrize(("kind", "rate", "most"), [("stampede", 16.0, 1.1), ("drift", 60.0, 1.1)])
def test_past_saturation_on_little_kv_the_queue_adds_little_to_the_mean_ttft(kind, rate, most):
    """The stampedes of these seeds, on which nothing was chosen, have 0.98 times the mean without the queue."""
    means = {True: 0.0, False: 0.0}
    for seed in range(201, 207):
        load = WorkloadParameters(requests=1000, rate=rate, seed=seed)
        trace = generated(kind, load)
        for queued in means:
            turns = {"window_tokens": RELEASE_WINDOW_TOKENS, "turns": QueueRule()} if queued else {}
            scenario = Scenario(workers=4, kv_tokens=524_288, **turns)
            result = Simulation(trace, contender("cost", {}), scenario, seed=seed).run()
            means[queued] += summary(result.outcomes)["ttft_ms_mean"]
    assert means[True] < most * means[False]


def test_past_saturation_the_queue_adds_less_than_a_third_to_the_mean_ttft_of_bursts():
    """These seeds have 1.16 times the mean without the queue; while a crowd left a worker idle it was 1.53."""
    means = {True: 0.0, False: 0.0}
    for seed in range(211, 214):
        trace = generated("stampede", WorkloadParameters(requests=800, rate=32.0, tenants=4, seed=seed))
        for queued in means:
            turns = {"window_tokens": RELEASE_WINDOW_TOKENS, "turns": QueueRule()} if queued else {}
            scenario = Scenario(workers=4, kv_tokens=2_097_152, **turns)
            result = Simulation(trace, contender("cost", {}), scenario, seed=seed).run()
            means[queued] += summary(result.outcomes)["ttft_ms_mean"]
    assert means[True] < 4 / 3 * means[False]


# Several gateways


def test_late_loads_cost_a_burst_with_one_new_prefix_little():
    def mean_ttft(seed, sync_seconds):
        trace = generated("stampede", WorkloadParameters(requests=200, rate=16.0, seed=seed))
        scenario = Scenario(
            workers=4,
            kv_tokens=524_288,
            gateways=4,
            sync_seconds=sync_seconds,
            window_tokens=RELEASE_WINDOW_TOKENS,
            turns=QueueRule(),
        )
        return summary(Simulation(trace, contender("cost", {}), scenario).run().outcomes)["ttft_ms_mean"]

    late, fresh = (sum(mean_ttft(seed, seconds) for seed in (3, 4)) for seconds in (0.5, 0.0))
    assert late < 1.2 * fresh
