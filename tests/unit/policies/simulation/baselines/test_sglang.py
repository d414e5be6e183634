"""SGLang's rule: a long match wins unless streams are out of balance."""

from tests.unit.policies.routing.candidates import best, candidate


def test_sglang_takes_a_long_match_unless_streams_are_out_of_balance():
    holder = {"matched": 3000}
    assert best("sglang", [candidate("a", streams=30, **holder), candidate("b")]) == "a"
    assert best("sglang", [candidate("a", streams=40, **holder), candidate("b")]) == "b"
    assert best("sglang", [candidate("a", streams=3, matched=1000), candidate("b")]) == "b"
