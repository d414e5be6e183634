"""Which provider a request goes over to: with consent, in its own model, up, and the cheapest."""

from dataclasses import replace

import msgspec
import pytest

from gateway.context import RequestContext
from gateway.dispatch.fleet import Fleet, FleetEvents, Worker
from gateway.dispatch.overflow import Overflow
from gateway.dispatch.provider import Provider
from gateway.model import Model
from gateway.quotas.prices import Prices
from gateway.request import InferenceRequest, Surface
from gateway.tenants.tenant import Plan, Tenant
from radix_cache.match import WorkerId

CHEAP = Prices.of(input=1, cached_input=None, output=2)
DEAR = Prices.of(input=3, cached_input=None, output=4)
TENANT = Tenant(id="acme", organisation="acme", key_id="k", plan=Plan(), group="", overflows=True)
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
    made.health = made.health.probed(0.0)
    return made


def fleet_of(*workers):
    def nobody(*told):
        pass

    return Fleet(workers, FleetEvents(room=nobody, emptied=nobody, reported=nobody, gone=nobody))


def overflow(*workers, ctx=CONTEXT):
    return Overflow(ctx, fleet_of(*workers), prompt_tokens=100, output_tokens=10)


def asked(*workers, ctx=CONTEXT, without=()):
    return [route.worker for route in overflow(*workers, ctx=ctx).routes("why", without)]


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
        msgspec.structs.replace(CONTEXT, tenant=replace(TENANT, overflows=False)),
        msgspec.structs.replace(CONTEXT, model=replace(MODEL, name="other")),
        msgspec.structs.replace(CONTEXT, request=msgspec.structs.replace(REQUEST, surface=Surface.TOKENIZE)),
    ],
    ids=["no consent", "another model", "nothing generated"],
)
def test_nobody_is_asked_otherwise(ctx):
    assert asked(CHEAPER, ctx=ctx) == []
    assert overflow(CHEAPER, ctx=ctx).after_seconds(0.5) is None


def test_a_provider_that_is_down_is_not_asked():
    down = worker("down", Provider())
    down.health = down.health.drained()
    assert asked(down, DEARER) == ["dearer"]


def test_it_waits_here_as_long_as_the_most_impatient_provider_says_or_its_class_wants_a_first_token():
    assert overflow(CHEAPER).after_seconds(0.5) == 2.0
    assert overflow(CHEAPER, DEARER).after_seconds(0.5) == 0.5
    assert overflow(CHEAPER, DEARER).after_seconds(0.5, without={"dearer"}) == 2.0


def test_a_fleet_keeps_providers_apart():
    fleet = fleet_of(OURS, CHEAPER)
    assert (fleet.serving("m"), fleet.providers("m")) == ([OURS], [CHEAPER])
