"""Dynamo's rule: decode blocks added to prefill blocks."""

from tests.unit.policies.routing.candidates import best, candidate


def test_dynamo_adds_decode_blocks_to_prefill_blocks():
    assert best("dynamo", [candidate("a", matched=3000, kv_tokens=4000), candidate("b")]) == "b"
    assert best("dynamo", [candidate("a", matched=3000, kv_tokens=2000), candidate("b")]) == "a"
