"""The contract of RoutingPolicy, for every registered policy and every baseline of the simulator."""

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
                tokens_queued=(queued := draw(st.integers(0, 100_000))),
                tokens_computed=queued // 2,
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


POLICIES = {name: contender(name, {}) for name in contender_names()}
"""One question is put to all of them: making it up is what takes the time."""


@given(query=queries, candidates=fleets())
def test_every_candidate_is_ranked_once(query, candidates):
    for name, policy in POLICIES.items():
        ranked = policy.rank(query, candidates, 0.0)
        assert sorted(route.worker for route in ranked) == sorted(c.worker.id for c in candidates), name


@given(query=queries, candidates=fleets())
def test_the_same_question_gets_the_same_answer(query, candidates):
    for name, policy in POLICIES.items():
        assert policy.rank(query, candidates, 0.0) == policy.rank(query, candidates, 0.0), name


@given(query=queries, candidates=fleets())
def test_no_route_is_much_better_than_one_before_it(query, candidates):
    for name, policy in POLICIES.items():
        costs = [route.cost_ms for route in policy.rank(query, candidates, 0.0)]
        assert all(later >= earlier * 0.95 for earlier, later in pairwise(costs)), name


@given(query=queries, candidates=fleets())
def test_every_route_has_a_reason_and_claims_no_more_than_the_prompt(query, candidates):
    for name, policy in POLICIES.items():
        for route in policy.rank(query, candidates, 0.0):
            assert route.reason, name
            assert 0 <= route.matched_tokens <= query.prompt_tokens, name


@pytest.mark.parametrize("name", POLICIES)
def test_candidates_are_not_changed(name):
    candidates = [
        Candidate(worker=WorkerSnapshot(id=WorkerId("b"))),
        Candidate(worker=WorkerSnapshot(id=WorkerId("a"))),
    ]
    before = list(candidates)
    asked = RouteQuery(prompt_tokens=10, output_tokens=1, sequence=0, draw=0.5)
    POLICIES[name].rank(asked, candidates, 0.0)
    assert candidates == before
