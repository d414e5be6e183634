"""What every registered RoutingPolicy promises, and every rule of others that the simulator knows."""

from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.routing.protocol import Candidate, RouteQuery
from policies.simulation.contenders import contender, contender_names
from radix_cache.match import WorkerId
from workers.worker import Speed, WorkerSnapshot

speeds = st.builds(
    Speed,
    ms_per_token=st.floats(0.001, 10),
    fixed_ms=st.floats(0.01, 100),
    step_ms=st.floats(0.1, 200),
)
queries = st.builds(
    RouteQuery,
    prompt_tokens=st.integers(0, 200_000),
    output_tokens=st.integers(0, 10_000),
    sequence=st.integers(0, 10**9),
    draw=st.floats(0, 1, exclude_max=True),
    blocks=st.lists(st.integers(0, 2**64 - 1), max_size=8).map(lambda hashes: array("Q", hashes)),
    block_tokens=st.integers(1, 512),
    session=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
)


@st.composite
def fleets(draw):
    count = draw(st.integers(0, 6))
    return [
        Candidate(
            worker=WorkerSnapshot(
                id=WorkerId(f"w{at}"),
                tokens_queued=draw(st.integers(0, 100_000)),
                streams=draw(st.integers(0, 500)),
                kv_tokens=draw(st.integers(0, 10**6)),
                kv_tokens_max=draw(st.one_of(st.none(), st.integers(1, 10**6))),
                chunk_tokens=draw(st.integers(1, 16384)),
                speed=draw(speeds),
            ),
            matched_tokens=draw(st.integers(0, 200_000)),
        )
        for at in range(count)
    ]


@pytest.fixture(scope="module", params=contender_names())
def policy(request):
    return contender(request.param, {})


@given(query=queries, candidates=fleets())
def test_every_candidate_is_ranked_once(policy, query, candidates):
    ranked = policy.rank(query, candidates, 0.0)
    assert sorted(route.worker for route in ranked) == sorted(c.worker.id for c in candidates)


@given(query=queries, candidates=fleets())
def test_the_same_question_gets_the_same_answer(policy, query, candidates):
    assert policy.rank(query, candidates, 0.0) == policy.rank(query, candidates, 0.0)


@given(query=queries, candidates=fleets())
def test_no_route_is_much_better_than_one_before_it(policy, query, candidates):
    costs = [route.cost_ms for route in policy.rank(query, candidates, 0.0)]
    assert all(later >= earlier * 0.95 for earlier, later in pairwise(costs))


@given(query=queries, candidates=fleets())
def test_every_route_has_a_reason_and_claims_no_more_than_the_prompt(policy, query, candidates):
    for route in policy.rank(query, candidates, 0.0):
        assert route.reason
        assert 0 <= route.matched_tokens <= max(query.prompt_tokens, 200_000)


def test_candidates_are_not_changed(policy):
    candidates = [
        Candidate(worker=WorkerSnapshot(id=WorkerId("b"))),
        Candidate(worker=WorkerSnapshot(id=WorkerId("a"))),
    ]
    before = list(candidates)
    policy.rank(RouteQuery(prompt_tokens=10, output_tokens=1, sequence=0, draw=0.5), candidates, 0.0)
    assert candidates == before
