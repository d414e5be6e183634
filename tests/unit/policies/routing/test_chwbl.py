"""The chwbl policy: consistent hashing with bounded loads."""

from collections import Counter

from policies.simulation.contenders import contender
from tests.unit.policies.routing.candidates import best, candidate, query


def test_chwbl_sends_equal_beginnings_to_the_same_worker_and_spreads_others():
    workers = [candidate(name) for name in "abcd"]
    same = {best("chwbl", workers, query(blocks=(1, 2, 3, 4, tail), draw=tail / 99)) for tail in range(5, 50)}
    assert len(same) == 1
    spread = Counter(best("chwbl", workers, query(blocks=(1, 2, 3, at))) for at in range(400))
    assert min(spread.values()) > 60


def test_chwbl_separates_prompts_that_are_shorter_than_its_key():
    workers = [candidate(name) for name in "abcd"]
    assert len({best("chwbl", workers, query(blocks=(at,))) for at in range(50)}) == 4


def test_chwbl_leaves_a_worker_that_has_more_than_its_share():
    asked = query(blocks=(1, 2, 3, 4))
    first, second = [
        route.worker for route in contender("chwbl", {}).rank(asked, [candidate(n) for n in "abc"], 0.0)
    ][:2]
    loaded = [candidate(name, streams=9 if name == first else 2) for name in "abc"]
    assert best("chwbl", loaded, asked) == second
    assert best("chwbl", loaded, asked, load_max=10) == first
