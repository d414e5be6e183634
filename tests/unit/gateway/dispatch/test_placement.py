"""What a placement reserves on workers, ranks and in the queue, and that its end frees all of it."""

from types import SimpleNamespace

import pytest

from gateway.dispatch.placement import in_fleet, prefill_worker_of
from gateway.domain.token_usage import PromptDetails, TokenUsage
from gateway.fleet.provider import Provider
from gateway.quotas.prices import Prices
from policies.queueing.protocol import Ticket
from policies.routing.protocol import Route
from radix_cache.match import WorkerId
from tests.fakes.dispatch_stage import MODEL, DispatchStage, prompt_of
from workers.adapter import WorkerReport
from workers.worker import Role

PROMPT = prompt_of(640)
PRICES = Prices.of(input=1, cached_input=None, output=2)


def route(worker, prefill_worker=None):
    return Route(
        worker=WorkerId(worker),
        cost_ms=1.0,
        matched_tokens=128,
        reason="scripted",
        prefill_worker=WorkerId(prefill_worker) if prefill_worker else None,
    )


def place(stage, on, *, tokens=512, session=None, lease=None):
    ticket = stage.queue.ticket(Ticket(number=0, tenant="acme", cost=5.0, arrived_at=0.0), "m", 650)
    stage.queue.note_placed(ticket, prefill_worker_of(on), tokens)
    return stage.placements.place(
        SimpleNamespace(ctx=stage.context(), prompt=PROMPT, session=session),
        on,
        uncached_tokens=tokens,
        ticket=ticket,
        now=stage.clock(),
        match=None,
        provider_lease=lease,
    )


def load(stage, name):
    load = stage.worker(name).load
    return load.tokens_queued, load.streams, load.kv_tokens


@pytest.fixture
def stage():
    return DispatchStage("a", "b")


@pytest.fixture
def pair():
    stage = DispatchStage("x")
    stage.join("p", kind="vllm", role=Role.PREFILL)
    stage.join("d", kind="vllm", role=Role.DECODE)
    return stage


def test_a_placement_takes_the_uncached_prompt_a_stream_and_the_whole_kv(stage):
    place(stage, route("a"))
    assert load(stage, "a") == (512, 1, 650)
    assert load(stage, "b") == (0, 0, 0)


def test_a_placement_is_listed_for_the_other_gateways(stage):
    place(stage, route("a"))
    assert [(each.worker, each.uncached_tokens) for each in stage.queue.placements] == [("a", 512)]


def test_the_first_token_frees_the_window_and_keeps_the_stream(stage):
    placement = place(stage, route("a"))
    stage.placements.note_first_token(placement)
    assert load(stage, "a") == (0, 1, 650)
    assert [each.uncached_tokens for each in stage.queue.placements] == [0]


def test_the_end_frees_everything(stage):
    placement = place(stage, route("a"))
    stage.placements.end(placement, 0.0)
    assert stage.reserved() == {}


def test_the_end_before_the_first_token_frees_everything_too(stage):
    first, second = place(stage, route("a")), place(stage, route("a"))
    stage.placements.end(first, 0.0)
    assert load(stage, "a") == (512, 1, 650)
    stage.placements.end(second, 0.0)
    assert stage.reserved() == {}


def test_ending_twice_frees_once(stage):
    first, other = place(stage, route("a")), place(stage, route("a"))
    stage.placements.end(first, 0.0)
    stage.placements.end(first, 0.0)
    assert load(stage, "a") == (512, 1, 650)
    stage.placements.end(other, 0.0)
    assert stage.reserved() == {}


def test_requests_on_our_own_workers_are_counted_by_model(stage, pair):
    first, second = place(stage, route("a")), place(stage, route("b"))
    stage.placements.end(first, 0.0)
    stage.placements.end(first, 0.0)
    assert stage.placements.counts() == {"m": 1}
    stage.placements.give_back(second)
    assert stage.placements.counts() == {}
    placement = place(pair, route("d", "p"))
    pair.placements.note_first_token(placement)
    assert pair.placements.counts() == {"m": 1}


def test_a_first_token_after_the_end_changes_nothing(stage):
    placement = place(stage, route("a"))
    stage.placements.end(placement, 0.0)
    stage.placements.note_first_token(placement)
    assert stage.reserved() == {}


def test_the_end_corrects_the_cost_in_the_queue(stage):
    placement = place(stage, route("a"))
    stage.placements.end(placement, -3.0)
    assert stage.queue.left == [(placement.ticket.id, -3.0)]


def test_a_placement_that_is_given_back_costs_what_it_did(stage):
    placement = place(stage, route("a"))
    stage.placements.give_back(placement)
    assert stage.queue.left == [(placement.ticket.id, 0.0)]


@pytest.mark.parametrize("shared", [False, True])
def test_the_end_contains_whether_the_placement_was_announced(shared):
    stage = DispatchStage("a", shared=shared)
    assert stage.placements.end(place(stage, route("a")), 0.0) is shared


def test_tokens_ahead_are_those_queued_and_its_own(stage):
    place(stage, route("a"), tokens=300)
    assert place(stage, route("a"), tokens=200).tokens_ahead == 500
    assert place(stage, route("b"), tokens=200).tokens_ahead == 200


def test_tokens_that_the_worker_has_computed_meanwhile_are_not_ahead(stage):
    place(stage, route("a"), tokens=300)
    stage.clock.advance(3600.0)
    assert place(stage, route("a"), tokens=200).tokens_ahead < 500


def test_a_pair_reserves_the_prompt_at_one_worker_and_the_answer_at_the_other(pair):
    place(pair, route("d", "p"))
    assert load(pair, "p") == (512, 1, 640)
    assert load(pair, "d") == (0, 1, 650)


def test_a_pair_has_a_placement_on_each_worker_in_the_queue(pair):
    place(pair, route("d", "p"))
    listed = {(each.worker, each.uncached_tokens) for each in pair.queue.placements}
    assert listed == {("p", 512), ("d", 0)}


def test_the_decode_workers_ticket_costs_nothing(pair):
    assert place(pair, route("d", "p")).decode_ticket.cost == 0.0


def test_the_first_token_frees_the_prefill_worker_of_a_pair(pair):
    placement = place(pair, route("d", "p"))
    pair.placements.note_first_token(placement)
    assert load(pair, "p") == (0, 0, 0)
    assert load(pair, "d") == (0, 1, 650)


@pytest.mark.parametrize("after_first_token", [False, True])
def test_the_end_of_a_pair_frees_both_workers_and_both_tickets(pair, after_first_token):
    placement = place(pair, route("d", "p"))
    if after_first_token:
        pair.placements.note_first_token(placement)
    pair.placements.end(placement, 0.0)
    assert pair.reserved() == {}


def test_a_pair_holds_the_prompts_cache_on_both_where_the_decode_worker_serves_alone_too(pair):
    assert place(pair, route("d", "p")).holders == ("p", "d")


def test_a_pair_holds_the_prompts_cache_on_its_prefill_worker_alone_otherwise():
    stage = DispatchStage("x")
    stage.join("p", kind="sglang", role=Role.PREFILL)
    stage.join("d", kind="sglang", role=Role.DECODE)
    assert place(stage, route("d", "p")).holders == ("p",)


def test_one_worker_holds_the_prompts_cache_by_itself(stage):
    assert place(stage, route("a")).holders == ("a",)


def test_the_usage_of_a_pair_leaves_out_the_tokens_that_were_handed_over(pair):
    usage = TokenUsage(640, 4, PromptDetails(639))
    assert place(pair, route("d", "p")).usage_of_pair(usage).cached_tokens is None


def test_the_usage_of_one_worker_is_what_it_reports(stage):
    usage = TokenUsage(640, 4, PromptDetails(639))
    assert place(stage, route("a")).usage_of_pair(usage) is usage


def test_a_pair_without_usage_has_none(pair):
    assert place(pair, route("d", "p")).usage_of_pair(None) is None


def with_ranks(stage, count):
    stage.worker("a").report = WorkerReport(ranks=count)
    return stage


def test_a_worker_of_several_ranks_gets_the_prompt_on_one_of_them(stage):
    assert place(with_ranks(stage, 2), route("a")).rank.number in (0, 1)


def test_a_worker_of_one_rank_has_none_to_choose(stage):
    assert place(stage, route("a")).rank is None


def test_two_prompts_at_once_go_to_different_ranks(stage):
    with_ranks(stage, 2)
    first = place(stage, route("a"))
    other = stage.placements._ranks.choose(WorkerId("a"), 2, prompt_of(640, first=9))
    assert first.rank.number != other.number


def test_the_end_frees_the_rank(stage):
    placement = place(with_ranks(stage, 2), route("a"))
    stage.placements.end(placement, 0.0)
    loads = stage.placements._ranks.loads(WorkerId("a"))
    assert [(each.tokens_queued, each.streams) for each in loads] == [(0, 0), (0, 0)]


def test_a_placement_at_a_provider_has_the_providers_prices(stage):
    stage.join("cloud", provider=Provider(prices={"m": PRICES}))
    placement = place(stage, route("cloud"))
    assert placement.at_provider
    assert placement.prices(MODEL) is PRICES


def test_a_placement_on_a_worker_of_ours_has_the_models_prices(stage):
    placement = place(stage, route("a"))
    assert not placement.at_provider
    assert placement.prices(MODEL) is MODEL.prices


def test_a_route_is_in_the_fleet_while_both_its_workers_are(pair):
    both = route("d", "p")
    assert in_fleet(pair.fleet, both)
    pair.fleet.remove(WorkerId("p"))
    assert not in_fleet(pair.fleet, both)
    assert in_fleet(pair.fleet, route("d"))
