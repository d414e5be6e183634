"""A simulated engine, with step times easy to add up: 10 ms and 1 ms a prompt token, 5 ms a decode step."""

from array import array

import pytest

from policies.simulation.engines.block_cache import BlockCache
from policies.simulation.engines.simulated_engine import SimulatedEngine, SimulatedJob
from policies.simulation.engines.step_time import StepTime
from policies.simulation.trace import TraceRequest
from policies.simulation.waiting_orders import ORDERS

TIMES = StepTime(prefill_ms=(10, 1, 0), decode_ms=(5, 0, 0), chunk_tokens=1000, sequences_max=4)


def engine(blocks: int = 100, order: str = "fcfs", times: StepTime = TIMES) -> SimulatedEngine:
    return SimulatedEngine(
        cache=BlockCache(blocks), capacity_tokens=512 * blocks, times=times, order=ORDERS[order]
    )


def job(number: int, tokens: int, output: int = 1, first_block: int = 0, at: float = 0.0) -> SimulatedJob:
    blocks = array("Q", range(first_block, first_block - (-tokens // 512)))
    request = TraceRequest(at=at, prompt_tokens=tokens, output_tokens=output, blocks=blocks)
    return SimulatedJob(number, request, at)


def played(subject: SimulatedEngine, *arrivals: tuple[float, SimulatedJob]) -> dict[int, list[float]]:
    """Moments of first and last token in ms, by number."""
    seen: dict[int, list[float]] = {}
    left = list(arrivals)
    while left or subject.ends_at is not None:
        if left and (subject.ends_at is None or left[0][0] < subject.ends_at):
            at, arriving = left.pop(0)
            subject.submit(arriving, at)
            continue
        now = subject.ends_at
        subject.finish(now)
        for done in (*subject.first_tokens, *subject.finished):
            seen.setdefault(done.number, []).append(pytest.approx(1000 * now))
        subject.first_tokens.clear()
        subject.finished.clear()
        subject.published.clear()
        subject.begin(now)
    return seen


def test_a_prompt_takes_its_prefill_and_a_step_for_each_further_token():
    assert played(engine(), (0, job(1, 500, output=3))) == {1: [510, 520]}


def test_a_long_prompt_is_computed_in_chunks():
    assert played(engine(), (0, job(1, 2500))) == {1: [1010 + 1010 + 510] * 2}


def test_prompts_share_a_step_in_order_of_arrival():
    one, two = job(1, 600), job(2, 600, first_block=50)
    subject = engine()
    subject.submit(job(0, 100, first_block=90), 0.0)
    assert played(subject, (0.01, one), (0.02, two)) == {0: [110] * 2, 1: [1120] * 2, 2: [1330] * 2}


def test_streams_go_on_while_a_prompt_is_computed_and_slow_it():
    seen = played(engine(), (0, job(1, 100, output=4)), (0.111, job(2, 100, first_block=50)))
    # First token at 110; a decode step until 115; then one of both kinds, and a last one.
    assert seen == {1: [110, 115 + 115 + 5], 2: [115 + 115] * 2}


def test_a_run_of_decode_steps_is_cut_where_a_request_arrives():
    seen = played(engine(), (0, job(1, 100, output=100)), (0.1325, job(2, 100, first_block=50)))
    assert seen[2] == [135 + 115] * 2
    assert seen[1] == [110, 110 + 99 * 5 + 110]


def test_a_cached_prefix_is_not_computed_again():
    first, second = job(1, 1500), job(2, 1500)
    seen = played(engine(), (0, first), (2.0, second))
    assert (first.cached_tokens, second.cached_tokens) == (0, 1499)
    assert seen[2] == [2000 + 11] * 2


def test_equal_prompts_in_one_step_are_both_computed_and_kept_once():
    subject = engine()
    subject.submit(job(0, 100, first_block=90), 0.0)
    one, two = job(1, 400), job(2, 400)
    played(subject, (0.01, one), (0.02, two))
    assert (one.cached_tokens, two.cached_tokens) == (0, 0)
    assert subject.cache.in_use == 0
    assert 0 in subject.cache


def test_a_request_waits_until_its_blocks_fit():
    # Each needs three of four blocks: prompt and answer.
    seen = played(
        engine(blocks=4), (0, job(1, 1000, output=100)), (0.001, job(2, 1000, output=2, first_block=50))
    )
    assert seen[1] == [1010, 1010 + 99 * 5]
    assert seen[2][0] == 1010 + 99 * 5 + 1010


def test_no_more_sequences_run_than_there_may():
    times = StepTime(prefill_ms=(10, 1, 0), decode_ms=(5, 0, 0), chunk_tokens=1000, sequences_max=1)
    seen = played(engine(times=times), (0, job(1, 100, output=11)), (0.001, job(2, 100, first_block=50)))
    assert seen == {1: [110, 160], 2: [270] * 2}


@pytest.mark.parametrize(("order", "first"), [("fcfs", 1), ("shortest", 2), ("hrrn", 2)])
def test_the_order_decides_which_waiting_request_goes_first(order, first):
    times = StepTime(prefill_ms=(10, 1, 0), decode_ms=(5, 0, 0), chunk_tokens=5000, sequences_max=1)
    subject = engine(order=order, times=times)
    subject.submit(job(0, 100, first_block=90), 0.0)
    seen = played(subject, (0.01, job(1, 4000, at=0.01)), (0.02, job(2, 600, first_block=50, at=0.02)))
    assert min((1, 2), key=lambda number: seen[number][0].expected) == first


def test_an_engine_that_stops_loses_what_it_had_and_its_cache():
    subject = engine()
    subject.submit(job(1, 1500, output=9), 0.0)
    subject.submit(job(2, 1500), 0.0)
    assert [lost.number for lost in subject.stop()] == [2, 1]
    assert (subject.ends_at, subject.cache.in_use, 0 in subject.cache) == (None, 0, False)


def test_the_soonest_first_token_comes_after_the_prompts_under_way():
    subject = engine()
    assert subject.soonest_ttft(job(1, 500).request, 0.0) == pytest.approx(0.510)
    subject.submit(job(1, 2500), 0.0)
    subject.submit(job(2, 900, first_block=100), 0.0)
    # 1,010 ms of the step under way are left but 200, then 1,500 and its own 500 tokens; who waits goes after it.
    assert subject.soonest_ttft(job(3, 500, first_block=200).request, 0.2) == pytest.approx(0.810 + 2.020)
