"""The product policy weighs a prefill by the streams that it delays."""

from tests.unit.policies.routing.candidates import best, candidate


def test_product_weighs_prefill_by_those_it_delays():
    assert best("product", [candidate("a", streams=9, matched=3000), candidate("b")]) == "b"
    assert best("product", [candidate("a", streams=2, matched=3000), candidate("b")]) == "a"
