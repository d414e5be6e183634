"""Turns in the simulator: the real queue policies choose the next request and isolate tenants below their share."""

from array import array

import pytest

from policies.queueing.estimate_ages import AGE_SECONDS
from policies.simulation.contenders import contender
from policies.simulation.outcome import summary
from policies.simulation.scenario import FleetAction, FleetChange, Scenario
from policies.simulation.simulation import Simulation
from policies.simulation.trace import TraceRequest
from policies.simulation.turns.queue_rule import REQUESTS, QueueRule


def request(at, tenant, tokens, number):
    blocks = array("Q", range(number << 32, (number << 32) - (-tokens // 512)))
    return TraceRequest(at=at, prompt_tokens=tokens, output_tokens=20, blocks=blocks, tenant=tenant)


FLOOD = [request(1 + 0.01 * at, "flood", 8000, at) for at in range(400)]
VICTIM = [request(0.5 * at, "victim", 1000, 10_000 + at) for at in range(20)]
TRACE = sorted([*FLOOD, *VICTIM], key=lambda one: one.at)


def played(rule, window=16_384, trace=TRACE, **more):
    scenario = Scenario(workers=2, kv_tokens=400_000, window_tokens=window, turns=rule, **more)
    return Simulation(trace, contender("cost", {}), scenario).run()


@pytest.fixture(scope="module")
def sent_at_once():
    """The run of a fleet whose gateway has no queue."""
    return played(None, window=None)


def median_ms(result, tenant):
    return summary([one for one in result.outcomes if one.tenant == tenant])["ttft_ms_p50"]


@pytest.mark.parametrize("across", ["fifo", "sfq", "vtc", "dlpm", "priority", REQUESTS])
@pytest.mark.parametrize("within", ["fcfs", "hrrn"])
def test_every_request_is_answered_whatever_the_policy(across, within):
    result = played(QueueRule(across=across, within=within), trace=TRACE[:120])
    assert {one.tenant for one in result.outcomes} == {"flood", "victim"}
    assert all(one.error is None and one.first_at is not None for one in result.outcomes)


@pytest.mark.parametrize("across", ["sfq", "vtc", "dlpm"])
def test_a_flood_does_not_delay_a_tenant_under_its_share(across, sent_at_once):
    fair = played(QueueRule(across=across))
    assert median_ms(fair, "victim") < median_ms(sent_at_once, "victim") / 20
    # No worker does less work for that.
    assert fair.seconds < 1.03 * sent_at_once.seconds


def test_long_prompts_are_fair_by_work_and_not_by_requests():
    long = [request(1 + 0.05 * at, "long", 48_000, at) for at in range(60)]
    trace = sorted(
        [*long, *(request(0.1 * at, "victim", 4000, 10_000 + at) for at in range(120))],
        key=lambda one: one.at,
    )
    by_work, by_requests = (played(QueueRule(across=across), trace=trace) for across in ("sfq", REQUESTS))
    assert median_ms(by_work, "victim") < median_ms(by_requests, "victim") / 2


def test_weights_are_shares():
    both = [request(0.001 * at, "ab"[at % 2], 4000, at) for at in range(400)]
    result = played(QueueRule(weights={"a": 3.0}), trace=both)
    half = sorted(one.first_at for one in result.outcomes)[200]
    first = [one.tenant for one in result.outcomes if one.first_at <= half]
    assert first.count("a") / len(first) == pytest.approx(0.75, abs=0.05)


def test_several_gateways_share_the_queue():
    alone, several = played(QueueRule()), played(QueueRule(), gateways=4)
    assert median_ms(several, "victim") < 1.5 * median_ms(alone, "victim")


def test_what_a_dead_worker_had_waits_again_and_is_answered():
    changes = (
        FleetChange(at=2.0, worker=0, what=FleetAction.KILL),
        FleetChange(at=3.0, worker=0, what=FleetAction.JOIN),
    )
    result = played(QueueRule(), changes=changes)
    lost = [one for one in result.outcomes if one.error is not None]
    assert all(one.error == "stream_interrupted" for one in lost)
    assert sum(one.attempts > 1 for one in result.outcomes) > 0


@pytest.mark.parametrize(("within", "first"), [("hrrn", 0), ("fcfs", 0)])
def test_a_request_whose_prefix_was_computed_while_it_waited_is_as_short_as_it_is_now(within, first):
    queue = QueueRule(within=within).queue()
    for number, tokens in enumerate((8000, 1000)):
        queue.arrive(number, TRACE[0], tokens, 20, 0.0)
        queue.wait(number, 0.0)
    assert queue.take_due_estimate(AGE_SECONDS / 2) is None
    assert queue.take_due_estimate(2 * AGE_SECONDS) == 0
    queue.estimate(0, TRACE[0], 10, 20)
    assert queue.next_number(1.0) == first
    queue.take()
    assert (queue.next_number(1.0), len(queue)) == (1, 1)
