"""Prices: what tokens cost, and what is reserved for them."""

from gateway.quotas.prices import Prices


def test_a_cost_is_rounded_up_once():
    prices = Prices.of(input=0.1, cached_input=0.02, output=0.4)
    assert prices.cost(prompt_tokens=0, cached_tokens=0, output_tokens=0) == 0
    assert prices.cost(prompt_tokens=10, cached_tokens=5, output_tokens=1) == 1
    assert prices.cost(prompt_tokens=3_000_000, cached_tokens=1_000_000, output_tokens=500_000) == 420_000
    assert Prices.of(input=0.1, cached_input=None, output=0.4).cached_input == prices.input


def test_what_is_reserved_is_never_less_than_what_it_can_come_to():
    for prices in (
        Prices.of(input=2, cached_input=0.5, output=1),
        Prices.of(input=1, cached_input=3, output=1),
    ):
        most = prices.cost_at_most(prompt_tokens=100, output_tokens=10)
        assert most == max(
            prices.cost(prompt_tokens=100, cached_tokens=cached, output_tokens=10) for cached in range(101)
        )
        tokens = prices.output_tokens_for(most, prompt_tokens=100)
        assert prices.cost_at_most(prompt_tokens=100, output_tokens=tokens) <= most
