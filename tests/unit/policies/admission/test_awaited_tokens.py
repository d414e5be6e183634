"""Awaited tokens: which request has a worker of its own, and what waits for each worker."""

import pytest

from policies.admission.awaited_tokens import AwaitedTokens, own_worker_route
from policies.routing.protocol import Route
from radix_cache.match import WorkerId


def route(worker, matched, ms_per_token=0.1):
    return Route(
        worker=WorkerId(worker), cost_ms=1.0, matched_tokens=matched, ms_per_queued_token=ms_per_token
    )


@pytest.mark.parametrize(
    ("matched", "own"), [((500, 100), True), ((500, 450), False), ((500, 500), False), ((500,), False)]
)
def test_a_request_has_its_own_worker_if_that_saves_more_than_is_worth_a_wait(matched, own):
    ranking = [route(f"w{at}", tokens) for at, tokens in enumerate(matched)]
    assert own_worker_route(ranking) is (ranking[0] if own else None)


def test_a_prompt_counts_at_the_worker_that_it_waits_for_until_it_leaves():
    awaited = AwaitedTokens[str, str]()
    awaited.wait("one", "a", 300)
    awaited.wait("two", "a", 200)
    assert (awaited.tokens, awaited.worker_of("one")) == ({"a": 500}, "a")
    awaited.wait("two", "b", 50)
    assert awaited.tokens == {"a": 300, "b": 50}
    assert (awaited.leave("one"), awaited.leave("one")) == ("a", None)
    assert awaited.tokens == {"b": 50}


def test_a_request_that_waits_counts_at_its_worker_once_for_each_gateway():
    awaited = AwaitedTokens[str, str]()
    awaited.wait("one", "a", 300, gateways=2)
    awaited.wait("two", "a", 200, gateways=2)
    assert (awaited.tokens, awaited.requests) == ({"a": 1000}, {"a": 4})
    awaited.leave("one")
    assert (awaited.tokens, awaited.requests) == ({"a": 400}, {"a": 2})
    awaited.leave("two")
    assert (awaited.tokens, awaited.requests) == ({}, {})


def test_nothing_counts_in_a_ranking_while_requests_wait_for_each_of_its_workers():
    awaited = AwaitedTokens[str, str]()
    awaited.wait("one", "a", 300)
    assert awaited.counted(["a", "b"]) == {"a": 300}
    awaited.wait("two", "b", 200)
    assert (awaited.counted(["a", "b"]), awaited.counted(["b", "c"])) == ({}, {"a": 300, "b": 200})
    awaited.leave("one")
    assert awaited.counted(["a", "b"]) == {"b": 200}
