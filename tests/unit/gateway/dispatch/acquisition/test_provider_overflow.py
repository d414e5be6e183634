"""The choice of a provider: with consent, for its own model, healthy, and the cheapest."""

from dataclasses import replace

import msgspec
import pytest

from gateway.dispatch.acquisition.provider_overflow import ProviderOverflow
from gateway.dispatch.dispatch_limits import DispatchLimits
from gateway.dispatch.output_estimates import OutputEstimates
from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.provider_quota import ProviderQuota
from gateway.domain.model import Model
from gateway.domain.prompt_blocks import NO_HASHES, PromptBlocks
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.request_context import RequestContext
from gateway.domain.tenant import Plan, Tenant
from gateway.fleet.fleet import Fleet
from gateway.fleet.provider import Provider
from gateway.fleet.worker import Worker
from gateway.quotas.leases import Leases
from gateway.quotas.limit import concurrency
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.prices import Prices
from gateway.telemetry.progress import Progress
from policies.queueing.cost_weights import CostWeights
from radix_cache.match import WorkerId
from tests.fakes.clock import FakeClock
from tests.fakes.fleet_listener import NotingListener
from workers.adapter import FailureKind, WorkerFailed
from workers.worker import Health

CHEAP = Prices.of(input=1, cached_input=None, output=2)
DEAR = Prices.of(input=3, cached_input=None, output=4)
TENANT = Tenant(id="acme", organisation="acme", key_id="k", plan=Plan(), group="", may_overflow=True)
MODEL = Model(name="m", block_size=64, encoder=None, context_length=None, created=0, prices=CHEAP)
REQUEST = InferenceRequest(
    surface=Surface.CHAT,
    model="m",
    fields={},
    prompt=[],
    stream=False,
    include_usage=False,
    choices=1,
    output_tokens_max=None,
)
CONTEXT = RequestContext(id="r", tenant=TENANT, model=MODEL, request=REQUEST, received_at=0.0)


def worker(name, provider, model="m"):
    made = Worker(
        id=WorkerId(name),
        kind="openai",
        adapter=None,
        models=frozenset({model}),
        models_fixed=True,
        provider=provider,
    )
    made.health = made.health.probe_answered(0.0)
    return made


def nobody(*told):
    pass


LIMITS = DispatchLimits(release_window_tokens=8192, cost_weights=CostWeights(), attempts_max=3)


def fleet_of(*workers, clock=lambda: 0.0):
    return Fleet(workers, clock)


def pending(ctx=CONTEXT):
    prompt = PromptBlocks(namespace=None, hashes=NO_HASHES, prompt_tokens=100, exact=True)
    progress = Progress("r", "chat/completions", lambda: 0.0, lambda: 0.0)
    return PendingRequest(
        ctx, prompt, progress, LIMITS, sequence=0, output_tokens=10, session=None, by_shadow=False
    )


def overflow(*workers):
    return ProviderOverflow(fleet_of(*workers), None)


def asked(*workers, ctx=CONTEXT, without=()):
    return [route.worker for route in overflow(*workers).routes(pending(ctx), "why", without)]


DEARER = worker("dearer", Provider(prices={"m": DEAR}))
CHEAPER = worker("cheaper", Provider(prices={"m": CHEAP}, after_seconds=2.0))
OURS = worker("ours", None)


def test_the_cheapest_goes_first_and_workers_of_ours_are_none_of_them():
    assert asked(DEARER, OURS, CHEAPER) == ["cheaper", "dearer"]
    assert asked(DEARER, OURS, CHEAPER, without={"cheaper"}) == ["dearer"]


def test_without_a_price_of_its_own_a_provider_costs_what_the_model_does():
    as_here = worker("as-here", Provider())
    assert asked(DEARER, as_here) == ["as-here", "dearer"]
    assert Provider(prices={"m": DEAR}).prices_of(MODEL) == DEAR
    assert Provider(prices={"other": DEAR}).prices_of(MODEL) == CHEAP


@pytest.mark.parametrize(
    "ctx",
    [
        msgspec.structs.replace(CONTEXT, tenant=replace(TENANT, may_overflow=False)),
        msgspec.structs.replace(CONTEXT, model=replace(MODEL, name="other")),
        msgspec.structs.replace(CONTEXT, request=msgspec.structs.replace(REQUEST, surface=Surface.TOKENIZE)),
    ],
    ids=["no consent", "another model", "nothing generated"],
)
def test_without_consent_no_provider_gets_a_call(ctx):
    assert asked(CHEAPER, ctx=ctx) == []
    assert overflow(CHEAPER).waits_seconds(pending(ctx)) is None


def test_a_provider_that_is_down_gets_no_call():
    down = worker("down", Provider())
    down.health = down.health.drained()
    assert asked(down, DEARER) == ["dearer"]


def test_it_waits_here_for_the_shortest_wait_of_a_provider_or_the_first_token_target_of_its_class():
    assert overflow(CHEAPER).waits_seconds(pending()) == 2.0
    assert overflow(CHEAPER, DEARER).waits_seconds(pending()) == 0.5
    assert overflow(CHEAPER, DEARER).overflows_at(pending(), 10.0) == 10.5
    assert overflow(CHEAPER, DEARER).overflows_at(pending(), 10.0, without={"dearer"}) == 12.0
    assert overflow(CHEAPER, DEARER).overflows_at(pending(), 10.0, without={"dearer", "cheaper"}) is None


def test_a_provider_in_its_backoff_gets_no_call_and_is_waited_for_as_long():
    rests, clock = worker("rests", Provider(prices={"m": CHEAP}, rest_seconds_max=30.0)), FakeClock()
    fleet = fleet_of(rests, DEARER, clock=clock)
    at, request = ProviderOverflow(fleet, None), pending()
    fleet.rest(rests.id, 20.0)
    fleet.rest(rests.id, 5.0)  # Another gateway has heard of less.
    now = clock()
    assert [route.worker for route in at.routes(request, "why")] == ["dearer"]
    assert at.back_in_seconds(request) == 20.0
    assert at.back_in_seconds(request, without={"rests"}) is None
    assert at.overflows_at(request, now, without={"dearer"}) == now + 20.0
    clock.advance(20.0)
    assert [route.worker for route in at.routes(request, "why")] == ["rests", "dearer"]
    assert at.back_in_seconds(request) is None
    fleet.rest(rests.id, 1000.0)
    assert at.back_in_seconds(request) == 30.0


@pytest.mark.parametrize(
    ("cause", "seconds"),
    [
        ({"rate_limited": True, "retry_after_seconds": 7.0}, 7.0),
        ({"rate_limited": True, "retry_after_seconds": 5000.0}, 60.0),
        ({"rate_limited": True}, 1.0),
        ({"retry_after_seconds": 3.0}, 3.0),
        ({}, 0.0),
    ],
    ids=["429 says", "429 says too much", "429 says nothing", "503 says", "503 says nothing"],
)
def test_the_backoff_of_a_provider_is_the_time_it_names_within_a_bound_and_is_shared(cause, seconds):
    told, clock = [], FakeClock()
    full, ours = worker("full", Provider()), worker("ours", None)
    fleet, listener = fleet_of(full, ours, clock=clock), NotingListener()
    listener.rests = told
    fleet.subscribe(listener)
    for one in (full, ours):
        for _ in range(9):
            fleet.worker_failed(one, WorkerFailed("full", failure=FailureKind.BUSY, **cause))
        assert (one.failures, one.health.state, one.health.strain) == (0, Health.UP, 0.0)
    assert full.rests_until == (clock() + seconds if seconds else float("-inf"))
    assert ours.rests_until == float("-inf")
    assert told == [("full", seconds)] * (9 if seconds else 0)


async def test_a_request_that_gave_its_provider_quota_back_in_a_backoff_may_have_it_again():
    clock = FakeClock()
    rests = worker("rests", Provider(limits=(concurrency(1),)))
    fleet = fleet_of(rests, clock=clock)

    class Resting(LocalQuotaStore):
        async def reserve(self, reservation, *, urgent=True):
            decision = await super().reserve(reservation, urgent=urgent)
            if not fleet.now() - 1000.0:
                fleet.rest(rests.id, 5.0)  # Another request has heard of it meanwhile.
            return decision

    leases = Leases(Resting(clock))
    at, request = ProviderOverflow(fleet, ProviderQuota(leases, OutputEstimates())), pending()
    assert (await at.take(request, "why"), len(leases)) == (None, 0)
    clock.advance(5.0)
    taken = await at.take(request, "why")
    assert taken is not None
    assert (taken[0].worker, len(leases)) == ("rests", 1)


def test_a_fleet_keeps_providers_apart():
    fleet = fleet_of(OURS, CHEAPER)
    assert (fleet.serving("m"), fleet.providers("m")) == ([OURS], [CHEAPER])
