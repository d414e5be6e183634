"""Routes to pairs: which prefill worker, which decode worker, and when a decode worker serves alone."""

import pytest

from policies.registry import routing_policy
from policies.routing.disaggregation import rank_with_pairs
from policies.routing.protocol import Candidate, RouteQuery
from radix_cache.match import WorkerId
from workers.adapters.disaggregation import disaggregation_profile
from workers.worker import Role, WorkerSnapshot

COST = routing_policy("cost", {})


def candidate(name, role, *, kind="embedded", matched=0, **load):
    half = disaggregation_profile(kind, role)
    return Candidate(
        worker=WorkerSnapshot(id=WorkerId(name), disaggregation=half, kv_tokens_max=100_000, **load),
        matched_tokens=matched,
    )


def prefill(name, **more):
    return candidate(name, Role.PREFILL, **more)


def decode(name, **more):
    return candidate(name, Role.DECODE, **more)


def whole(name, **more):
    return candidate(name, Role.BOTH, **more)


def routes(*candidates, policy=COST, alone_tokens=256, **query):
    asked = RouteQuery(**{"prompt_tokens": 4000, "output_tokens": 100, "sequence": 0, "draw": 0.0, **query})
    return [
        (route.prefill_worker, route.worker)
        for route in rank_with_pairs(policy, asked, candidates, 0.0, alone_tokens=alone_tokens)
    ]


def test_workers_that_are_no_halves_are_ranked_as_the_policy_has_them():
    assert routes(whole("a", matched=64), whole("b", matched=3200)) == [(None, "b"), (None, "a")]


def test_a_prompt_goes_to_the_prefill_worker_that_holds_its_prefix():
    assert routes(prefill("p1"), prefill("p2", matched=3200), decode("d")) == [("p2", "d"), ("p1", "d")]


def test_a_prompt_goes_past_a_prefill_worker_with_a_queue():
    found = routes(prefill("p1", tokens_queued=50_000, matched=640), prefill("p2"), decode("d"))
    assert found == [("p2", "d"), ("p1", "d")]


@pytest.mark.parametrize(
    ("busy", "why"),
    [
        ({"streams": 40}, "streams"),
        ({"kv_tokens": 99_000}, "no room"),
        ({"kv_tokens": 50_000}, "half full"),
    ],
    ids=["streams", "no-room", "half-full"],
)
def test_an_answer_goes_where_there_is_room_and_few_stream(busy, why):
    assert routes(prefill("p"), decode("d1", **busy), decode("d2")) == [("p", "d2")], why


def test_of_equal_decode_workers_the_one_that_holds_the_prefix_answers_for_less_has_to_be_moved():
    assert routes(prefill("p"), decode("d1"), decode("d2", matched=3200)) == [("p", "d2")]


def test_what_a_decode_worker_holds_does_not_choose_the_prefill_worker():
    found = routes(prefill("p1", matched=3200), prefill("p2"), decode("d", matched=1000))
    assert found[0] == ("p1", "d")


@pytest.mark.parametrize(
    ("left", "first"), [(255, (None, "d")), (256, ("p", "d"))], ids=["short", "not-short"]
)
def test_a_short_rest_is_computed_where_the_answer_is(left, first):
    assert routes(prefill("p"), decode("d", matched=4000 - left))[0] == first


def test_a_short_rest_has_the_pair_to_fall_back_on():
    assert routes(prefill("p"), decode("d", matched=3900)) == [(None, "d"), ("p", "d")]


def test_a_decode_worker_that_cannot_compute_prompts_never_serves_alone():
    halves = [prefill("p", kind="sglang"), decode("d", kind="sglang", matched=3999)]
    assert routes(*halves) == [("p", "d")]
    assert routes(halves[1]) == []
    assert routes(halves[0]) == []


def test_without_a_prefill_worker_the_decode_worker_serves_alone():
    assert routes(decode("d")) == [(None, "d")]


@pytest.mark.parametrize(
    "query", [{"answers": 3}, {"answers_prompt": True}], ids=["several-answers", "prompt-answered"]
)
def test_what_cannot_be_split_is_served_alone(query):
    assert routes(prefill("p", kind="vllm"), decode("d", kind="vllm"), **query) == [(None, "d")]
    assert routes(prefill("p", kind="sglang"), decode("d", kind="sglang"), **query) == [("p", "d")]


def test_what_generates_nothing_is_not_split():
    assert routes(prefill("p"), decode("d"), answers=0) == [(None, "d")]


def test_halves_of_different_kinds_are_no_pair():
    found = routes(
        prefill("p", kind="vllm"), decode("d1", kind="sglang"), decode("d2", kind="vllm", streams=9)
    )
    assert found == [("p", "d2")]


def test_pairs_compete_with_whole_workers_by_cost():
    found = routes(
        prefill("p"), decode("d"), whole("idle", matched=3200), whole("busy", tokens_queued=90_000)
    )
    assert found == [(None, "idle"), ("p", "d"), (None, "busy")]


def test_a_policy_without_costs_keeps_its_order():
    halves = (prefill("p1"), prefill("p2"), prefill("p3"), decode("d"))
    policy = routing_policy("round_robin", {})
    assert routes(*halves, policy=policy, sequence=1) == [("p2", "d"), ("p3", "d"), ("p1", "d")]


def test_a_route_names_the_prefill_and_the_decode_worker():
    asked = RouteQuery(prompt_tokens=4000, output_tokens=100, sequence=0, draw=0.0)
    (route,) = rank_with_pairs(COST, asked, [prefill("p", matched=640), decode("d")], 0.0, alone_tokens=256)
    assert route.matched_tokens == 640
    assert route.reason.startswith("p computes the prompt: 640 of 4000 tokens held")
    assert "d answers, with 0 streams" in route.reason
