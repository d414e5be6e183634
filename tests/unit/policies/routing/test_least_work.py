"""The least_work policy takes the shortest prefill queue, then the fewest streams."""

from tests.unit.policies.routing.candidates import best, candidate, query


def test_least_work_takes_the_shortest_prefill_queue_then_the_fewest_streams():
    workers = [
        candidate("a", tokens_queued=500),
        candidate("b", tokens_queued=100, streams=9),
        candidate("c", tokens_queued=100),
    ]
    assert best("least_work", workers) == "c"


def test_least_work_draws_lots_among_equals():
    workers = [candidate("a"), candidate("b")]
    assert {best("least_work", workers, query(draw=d)) for d in (0.1, 0.9)} == {"a", "b"}
