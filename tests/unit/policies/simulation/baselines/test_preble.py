"""Preble's rule: a prefix longer than the rest of the prompt is exploited."""

from tests.unit.policies.routing.candidates import best, candidate


def test_preble_exploits_a_prefix_that_is_longer_than_the_rest():
    assert best("preble", [candidate("a", matched=2100, tokens_queued=90_000), candidate("b")]) == "a"
    assert best("preble", [candidate("a", matched=1900, tokens_queued=90_000), candidate("b")]) == "b"
