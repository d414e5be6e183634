"""The prices of a model's tokens, as the settings give them."""

from gateway.quotas.prices import Prices
from gateway.settings.prices import PriceSettings


def prices_from(given: PriceSettings | None) -> Prices | None:
    """Return the prices of the settings; None where usage costs nothing."""
    if given is None:
        return None
    return Prices.of(input=given.input, cached_input=given.cached_input, output=given.output)
