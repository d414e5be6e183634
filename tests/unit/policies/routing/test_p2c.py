"""The p2c policy takes the better of two drawn workers."""

from collections import Counter

from tests.unit.policies.routing.candidates import best, candidate, draws, query


def test_p2c_never_takes_the_most_loaded_and_not_always_the_least():
    workers = [candidate("a", tokens_queued=9), candidate("b", tokens_queued=5), candidate("c")]
    chosen = Counter(best("p2c", workers, query(draw=draw)) for draw in draws())
    assert set(chosen) == {"b", "c"}
    assert chosen["c"] > chosen["b"]
