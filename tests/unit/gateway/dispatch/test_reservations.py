"""Reserving a request's quota, and settling it to what the request used."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from gateway.dispatch.output_estimates import OutputEstimates
from gateway.dispatch.reservations import Reservations
from gateway.domain.errors import (
    BudgetExhausted,
    IdempotencyKeyInUse,
    IdempotencyKeyReused,
    QuotaExceeded,
    QuotasUnavailable,
    RequestExceedsLimit,
    WorkerError,
)
from gateway.domain.token_usage import PromptDetails, TokenUsage
from gateway.quotas import quota_store
from gateway.quotas.leases import Leases
from gateway.quotas.limit import TOTAL_TOKENS, Limit, Scope, concurrency
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.prices import Prices
from gateway.quotas.quota_store import IdempotencyKey, QuotaStoreUnavailable
from policies.admission.limit_windows import Window
from policies.admission.retry_budget import RetryBudget
from tests.fakes.answer_tallies import tally_of
from tests.fakes.clock import FakeClock
from tests.fakes.dispatch_stage import MODEL, DispatchStage, inference, prompt_of, tenant

PROMPT = prompt_of(640)
PRICES = Prices.of(input=1, cached_input=None, output=2)
USED = TokenUsage(600, 7, PromptDetails(64))
UNBOUNDED = inference(output_tokens_max=None)


class FailingStore(LocalQuotaStore):
    """A quota store that answers every reservation with the same error."""

    def __init__(self, error):
        super().__init__(FakeClock())
        self.error = error

    async def reserve(self, reservation):
        raise self.error


@pytest.fixture
def stage():
    return DispatchStage("a")


def limited(*limits):
    return tenant(scopes=(Scope(name="tenant:acme", limits=limits),))


def tokens_a_minute(amount, reset="smooth"):
    return Limit(unit=TOTAL_TOKENS, amount=amount, window=Window(seconds=60.0, reset=reset))


async def reserve(stage, ctx, progress=None, reservations=None):
    progress = progress or stage.progress(ctx, PROMPT)
    return await (reservations or stage.reservations).reserve(ctx, PROMPT, progress)


def failing(error):
    return Reservations(
        Leases(FailingStore(error)), OutputEstimates(), RetryBudget(share=0, at_least=0, seconds=1)
    )


async def test_a_reservation_holds_a_lease_until_it_is_settled(stage):
    ctx = stage.context()
    request = stage.pending(ctx, PROMPT)
    lease = await reserve(stage, ctx, request.progress)
    assert len(stage.leases) == 1
    stage.reservations.settle(request, lease)
    assert len(stage.leases) == 0


async def test_the_whole_prompt_and_the_clients_own_bound_are_reserved(stage):
    lease = await reserve(stage, stage.context())
    cost = lease.reservation.cost
    assert (cost.prompt_tokens, cost.output_tokens, cost.cached_tokens) == (640, 10, None)


async def test_a_limit_with_no_room_now_refuses_with_the_time_to_come_back(stage):
    ctx = stage.context(tenant=limited(concurrency(1)))
    await reserve(stage, ctx)
    with pytest.raises(QuotaExceeded) as refusal:
        await reserve(stage, stage.context(tenant=ctx.tenant))
    assert refusal.value.status == 429


async def test_a_request_larger_than_a_whole_limit_is_refused_as_one_that_never_fits(stage):
    with pytest.raises(RequestExceedsLimit):
        await reserve(stage, stage.context(tenant=limited(tokens_a_minute(100))))


async def test_a_spent_budget_refuses_until_its_window_ends(stage):
    with_budget = limited(tokens_a_minute(1000, reset="fixed"))
    await reserve(stage, stage.context(tenant=with_budget))
    with pytest.raises(BudgetExhausted):
        await reserve(stage, stage.context(tenant=with_budget))


async def test_a_refused_request_takes_nothing(stage):
    both = limited(concurrency(5), tokens_a_minute(100))
    with pytest.raises(RequestExceedsLimit):
        await reserve(stage, stage.context(tenant=both))
    assert len(stage.leases) == 0


async def test_a_store_that_cannot_be_reached_makes_quotas_unavailable(stage):
    with pytest.raises(QuotasUnavailable):
        await reserve(stage, stage.context(), reservations=failing(QuotaStoreUnavailable("down")))


async def test_a_repeat_while_the_first_one_runs_is_refused_with_that_reason(stage):
    with pytest.raises(IdempotencyKeyInUse):
        await reserve(
            stage, stage.context(), reservations=failing(quota_store.RepeatedReservationRefused("running"))
        )


@pytest.mark.parametrize(("why", "different"), [("different", True), ("used up", False)])
async def test_a_repeat_that_may_not_be_made_is_refused_with_the_reason(stage, why, different):
    with pytest.raises(IdempotencyKeyReused) as refused:
        await reserve(
            stage, stage.context(), reservations=failing(quota_store.RepeatedReservationRefused(why))
        )
    assert str(refused.value) == str(IdempotencyKeyReused(different=different))


async def test_a_request_that_was_sent_before_needs_a_retry_from_the_budget(stage):
    ctx = stage.context()
    progress = stage.progress(ctx, PROMPT)
    progress.attempts = 1
    await reserve(stage, ctx, progress)
    assert stage.retry_budget.spent == 1


async def test_without_retries_left_a_request_that_was_sent_before_fails_and_reserves_nothing():
    stage = DispatchStage("a", retry_budget=RetryBudget(share=0.0, at_least=0, seconds=10.0))
    ctx = stage.context()
    progress = stage.progress(ctx, PROMPT)
    progress.attempts = 1
    with pytest.raises(WorkerError):
        await reserve(stage, ctx, progress)
    assert len(stage.leases) == 0


async def settled(stage, progress_of, prices=None):
    """Reserve and settle one request; return its progress and the tokens left of its limit."""
    ctx = stage.context(tenant=limited(tokens_a_minute(10_000)), model=replace(MODEL, prices=prices))
    request = stage.pending(ctx, PROMPT)
    lease = await reserve(stage, ctx, request.progress)
    progress_of(request.progress)
    stage.reservations.settle(request, lease)
    after = await reserve(stage, stage.context(tenant=ctx.tenant))
    return request.progress, after.limit_statuses[0].remaining + 650


async def test_a_request_that_no_worker_took_is_charged_nothing(stage):
    progress, left = await settled(stage, lambda progress: None)
    assert (progress.charged, left) == (None, 10_000)


async def test_a_finished_request_is_charged_what_the_worker_counted(stage):
    progress, left = await settled(stage, lambda progress: setattr(progress, "usage", USED))
    assert (progress.charged.prompt_tokens, progress.charged.output_tokens, left) == (600, 7, 9393)


async def test_a_stream_that_was_cut_is_charged_its_prompt_and_the_frames_that_came(stage):
    def cut(progress):
        progress.dispatched, progress.tally = True, tally_of(frames=3)

    _, left = await settled(stage, cut)
    assert left == 10_000 - 643


async def test_what_a_worker_refused_is_charged_as_a_request_without_tokens(stage):
    progress, left = await settled(stage, lambda progress: setattr(progress, "worker_refused", True))
    assert (progress.charged.prompt_tokens, left) == (0, 10_000)


async def test_the_price_is_that_of_the_answering_worker(stage):
    progress, _ = await settled(stage, lambda progress: setattr(progress, "usage", USED), PRICES)
    assert progress.spend == PRICES.cost(prompt_tokens=600, cached_tokens=64, output_tokens=7)


async def test_a_repeat_pays_for_its_own_computation(stage):
    key = IdempotencyKey(name="key", fingerprint="same")
    ctx = stage.context(idempotency_key=key)
    first = stage.pending(ctx, PROMPT)
    lease = await reserve(stage, ctx, first.progress)
    first.progress.usage = TokenUsage(600, 7)
    stage.reservations.settle(first, lease)
    repeat = stage.pending(stage.context(idempotency_key=key), PROMPT)
    second = await reserve(stage, repeat.ctx, repeat.progress)
    repeat.progress.usage = TokenUsage(600, 9)
    stage.reservations.settle(repeat, second)
    charged = repeat.progress.charged
    assert (charged.prompt_tokens, charged.output_tokens) == (600, 9)


async def test_settling_twice_charges_once(stage):
    ctx = stage.context(tenant=limited(tokens_a_minute(10_000)))
    request = stage.pending(ctx, PROMPT)
    lease = await reserve(stage, ctx, request.progress)
    request.progress.usage = USED
    stage.reservations.settle(request, lease)
    stage.reservations.settle(request, lease)
    after = await reserve(stage, stage.context(tenant=ctx.tenant))
    assert after.limit_statuses[0].remaining == 10_000 - 607 - 650


async def test_the_length_of_a_counted_answer_is_learnt(stage):
    request = stage.pending(prompt=PROMPT)
    before = stage.estimates.expected(stage.context(request=UNBOUNDED))
    request.progress.usage = TokenUsage(600, before + 1000)
    stage.reservations.settle(request, await reserve(stage, request.ctx, request.progress))
    assert stage.estimates.expected(stage.context(request=UNBOUNDED)) > before


async def test_the_length_of_an_answer_that_was_cut_is_not_learnt(stage):
    request = stage.pending(prompt=PROMPT)
    before = stage.estimates.expected(stage.context(request=UNBOUNDED))
    request.progress.dispatched, request.progress.tally = True, tally_of(frames=5000)
    stage.reservations.settle(request, await reserve(stage, request.ctx, request.progress))
    assert stage.estimates.expected(stage.context(request=UNBOUNDED)) == before


async def test_a_traced_request_notes_when_its_quota_was_reserved(stage):
    ctx = stage.context()
    progress = stage.progress(ctx, PROMPT)
    progress.trace = SimpleNamespace()
    await reserve(stage, ctx, progress)
    assert [step for step, _ in progress.marks] == ["reserve"]


async def test_a_request_without_limits_is_charged_all_the_same(stage):
    request = stage.pending(stage.context(tenant=tenant(scopes=())), PROMPT)
    lease = await reserve(stage, request.ctx, request.progress)
    request.progress.usage = USED
    stage.reservations.settle(request, lease)
    assert request.progress.charged.prompt_tokens == 600
