"""The engine's metrics: times on a fake clock, useful and wasted work."""

from collections.abc import Callable

import pytest

from tests.fakes.model_free_scheduler import ModelFreeScheduler
from workers.engine.engine import Engine
from workers.engine.metrics import EngineMetrics, GoodputObjectives, Histogram
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.plan import SampledTokens, StepItem, StepPlan
from workers.engine.scheduler.policy import SchedulingPolicy
from workers.engine.scheduler.sequence import FinishReason

STEP = 0.25


class Counted(ModelFreeScheduler):
    """A scheduler whose steps take a quarter of a second and are counted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.metrics = EngineMetrics(GoodputObjectives(ttft_seconds=1.0, tpot_seconds=STEP))

    def step(self) -> str:
        began = self.now
        said = super().step()
        self.now += STEP
        plan = self.plans[-1]
        sampled = [SampledTokens(tokens=(1,)) for item in plan.items if item.samples]
        self.metrics.record_step(plan, sampled, began, self.now)
        for sequence in [*plan.expired, *(item.sequence for item in plan.items)]:
            if sequence.finish:
                self.metrics.record_end(sequence, self.now)
        return said


def test_a_value_on_a_bound_counts_below_it_and_one_above_all_in_the_last() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.count, histogram.sum) == ([2, 2, 1], 5, 14.0)
    assert histogram.merged_with(histogram).counts == [4, 4, 2]


def test_every_latency_is_measured_by_the_clock() -> None:
    runs = Counted(running_max=1, budget=4)
    runs.submit("a", [1] * 4, max_tokens=2)
    runs.submit("b", [2] * 8, max_tokens=3)
    runs.finish_all()
    counts, figures = runs.metrics, runs.metrics.by_streaming[True]
    # a: steps 1 and 2. b: waits for two, prefills in 3 and 4, decodes in 5 and 6.
    assert counts.queue.sum == pytest.approx(0 + 2 * STEP)
    assert figures.ttft.sum == pytest.approx(STEP + 4 * STEP)
    assert (counts.itl.count, counts.itl.sum) == (3, pytest.approx(3 * STEP))
    assert (figures.tpot.count, figures.tpot.sum) == (2, pytest.approx(2 * STEP))
    assert figures.e2e.sum == pytest.approx(2 * STEP + 6 * STEP)
    assert counts.prefill.sum == pytest.approx(STEP + 2 * STEP)
    assert counts.decode.sum == pytest.approx(STEP + 2 * STEP)
    assert counts.inference.sum == pytest.approx(2 * STEP + 4 * STEP)
    assert (counts.steps, counts.step_seconds) == (6, pytest.approx(6 * STEP))
    assert counts.finished == {FinishReason.LENGTH: 2}


def test_an_answer_of_one_token_has_no_tpot() -> None:
    runs = Counted()
    runs.submit("a", [1] * 4, max_tokens=1)
    runs.finish_all()
    assert (runs.metrics.by_streaming[True].tpot.count, runs.metrics.itl.count) == (0, 0)


def test_goodput_counts_requests_that_met_every_objective() -> None:
    runs = Counted(running_max=1)
    for number in range(6):
        runs.submit(str(number), [number] * 4, max_tokens=2)
    runs.finish_all()
    # First tokens come after 1, 3, 5, ... quarters of a second; four are the objective.
    assert (runs.metrics.good_requests, runs.metrics.good_tokens) == (2, 2 * (4 + 2))


def test_cached_tokens_are_no_work_and_no_part_of_goodput() -> None:
    runs = Counted()
    runs.submit("a", list(range(9)), max_tokens=1)
    runs.finish_all()
    runs.submit("b", list(range(9)), max_tokens=1)
    runs.finish_all()
    counts = runs.metrics
    assert (counts.work.computed, counts.queried_tokens, counts.hit_tokens) == (9 + 1, 18, 8)
    assert counts.good_tokens == (9 + 1) + (1 + 1)


def test_tokens_of_a_cancelled_request_are_wasted_but_not_those_it_found_in_the_cache() -> None:
    runs = Counted()
    runs.submit("a", list(range(9)), max_tokens=1)
    runs.finish_all()
    gone = runs.submit("b", [*range(9), 50, 51], max_tokens=9)
    runs.steps(2)
    runs.scheduler.finish(gone, FinishReason.ABORT)
    runs.metrics.record_end(gone, runs.now)
    # Eight were cached; three of the prompt and one of the answer were computed.
    assert (gone.cached_tokens, runs.metrics.work.cancelled) == (8, 4)
    assert runs.metrics.work.wasted == 4


def test_a_request_that_never_began_wastes_nothing() -> None:
    runs = Counted(running_max=1)
    runs.submit("a", [1] * 4, max_tokens=3)
    runs.step()
    runs.submit("b", [2] * 4, deadline=runs.now)
    runs.finish_all()
    assert runs.metrics.finished[FinishReason.DEADLINE] == 1
    assert runs.metrics.work.wasted == 0


def test_what_a_preemption_lost_is_wasted() -> None:
    runs = Counted(blocks=6, budget=100, policy=SchedulingPolicy(prefix_caching=False))
    sequences = [runs.submit(name, [ord(name)] * 4, max_tokens=14) for name in "ab"]
    runs.finish_all()
    work = runs.metrics.work
    needed = sum(len(sequence.tokens) - 1 for sequence in sequences)
    assert runs.metrics.preemptions > 0
    assert work.computed == needed + work.recomputed
    assert 0 < work.recomputed == work.wasted


def test_padding_and_empty_rows_of_a_static_batch_are_wasted() -> None:
    policy = SchedulingPolicy(batching="static", chunked_prefill=False, prefix_caching=False)
    runs = Counted(policy=policy)
    runs.submit("a", [1] * 9, max_tokens=4)
    runs.submit("b", [2] * 2, max_tokens=2)
    runs.finish_all()
    # Seven to fill the prompt of b up, and two steps in which b had finished.
    assert (runs.metrics.work.padding, runs.metrics.work.wasted) == (9, 9)
    assert runs.metrics.work.computed == 9 + 3 + 2 + 1 + 9


def test_rejected_drafts_are_wasted() -> None:
    runs = ModelFreeScheduler()
    metrics = EngineMetrics()
    sequence = runs.submit("a", [1] * 4, max_tokens=20)
    runs.step()
    item = StepItem(sequence=sequence, start=4, count=4, samples=True, drafts=3)
    metrics.record_step(StepPlan(items=(item,)), [SampledTokens(tokens=(7, 8))], 0.0, 1.0)
    metrics.record_step(StepPlan(items=(item,)), [SampledTokens(tokens=(7, 8, 9, 5))], 1.0, 2.0)
    assert (metrics.work.rejected, metrics.work.wasted) == (2, 2)


def test_the_engine_counts_what_it_really_did(load: Callable[..., Engine]) -> None:
    engine = load(block_size=4)
    params = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
    engine.submit(Request(id="a", prompt=[9] * 12, params=params))
    engine.submit(Request(id="b", prompt=[8] * 12, params=params, streamed=False))
    engine.step()
    engine.abort("b")
    while engine.has_work:
        engine.step()
    counts = engine.metrics
    streamed, whole = counts.by_streaming[True], counts.by_streaming[False]
    assert (streamed.prompt_tokens, streamed.generated_tokens, streamed.requests) == (12, 5, 1)
    assert (whole.prompt_tokens, whole.generated_tokens, whole.requests) == (12, 1, 1)
    assert counts.work.computed == 12 + 4 + 12
    assert counts.work.cancelled == 12
    assert counts.finished == {FinishReason.LENGTH: 1, FinishReason.ABORT: 1}
    assert counts.good_requests <= 1


def test_a_deadline_ends_a_request_with_the_finish_reason_deadline(load: Callable[..., Engine]) -> None:
    engine = load(running_max=1)
    engine._clock = lambda: now
    now = 100.0
    params = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
    engine.submit(Request(id="a", prompt=[9] * 12, params=params))
    engine.step()
    engine.submit(Request(id="b", prompt=[8] * 12, params=params, deadline_seconds=2.0))
    now = 102.0
    ended = [output for output in engine.step() if output.finish]
    assert [(output.id, output.finish, output.tokens) for output in ended] == [("b", "deadline", ())]
