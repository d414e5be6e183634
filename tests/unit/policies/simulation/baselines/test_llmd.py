"""llm-d's rule: prefix affinity as a filter that a long queue breaks."""

from tests.unit.policies.routing.candidates import best, candidate, query


def test_llmd_filters_by_affinity_and_breaks_it_when_that_takes_too_long():
    holder = candidate("a", matched=3500, tokens_queued=20_000)
    assert best("llmd", [holder, candidate("b")], query(draw=0.5)) == "a"
    assert best("llmd", [holder, candidate("b")], query(draw=0.5), break_ms=1000) == "b"
    assert (
        best("llmd", [candidate("a", matched=3000, tokens_queued=1), candidate("b")], query(draw=0.5)) == "b"
    )
