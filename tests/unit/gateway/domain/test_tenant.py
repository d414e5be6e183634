"""Context bounds of a tenant: the smallest that holds for a model counts."""

from gateway.domain.tenant import ContextBounds


def test_the_least_context_of_all_that_hold_for_a_model_counts():
    bounds = ContextBounds(
        tokens_max=100, by_model_patterns=((("a*", "b"), 50), (("ab",), 20), (("c",), 500))
    )
    assert [bounds.tokens_max_of(model) for model in ("a", "ab", "b", "c", "d")] == [50, 20, 50, 100, 100]
    assert ContextBounds().tokens_max_of("a") is None
