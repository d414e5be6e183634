"""The round_robin policy takes workers in turn."""

from tests.unit.policies.routing.candidates import best, candidate, query


def test_round_robin_takes_turns_by_name():
    workers = [candidate("b"), candidate("c"), candidate("a")]
    order = [best("round_robin", workers, query(sequence=n)) for n in range(4)]
    assert order == ["a", "b", "c", "a"]
