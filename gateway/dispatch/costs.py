"""The cost of a request for its tenant's quota: the expected one, which is reserved, and the actual one."""

from gateway.domain.request_context import RequestContext
from gateway.domain.token_usage import ChargedTokens
from gateway.quotas.prices import Prices
from gateway.quotas.quota_store import Cost


def reserved(ctx: RequestContext, *, prompt_tokens: int, output_tokens: int) -> Cost:
    """Return the cost to reserve for these tokens; `reserved` of OutputEstimates gives `output_tokens`.

    It is not known yet what of the prompt is cached.
    """
    prices = ctx.model.prices
    return Cost(
        prompt_tokens=prompt_tokens,
        cached_tokens=None,
        output_tokens=output_tokens,
        spend=prices.cost_at_most(prompt_tokens=prompt_tokens, output_tokens=output_tokens) if prices else 0,
    )


def cost_of(used: ChargedTokens | None, prices: Prices | None) -> Cost | None:
    """Return what these tokens cost at these prices; None if nothing was computed for the request."""
    if used is None:
        return None
    cached_tokens = used.cached_tokens or 0
    spend = 0
    if prices is not None:
        spend = prices.cost(
            prompt_tokens=used.prompt_tokens, cached_tokens=cached_tokens, output_tokens=used.output_tokens
        )
    return Cost(
        prompt_tokens=used.prompt_tokens,
        cached_tokens=cached_tokens,
        output_tokens=used.output_tokens,
        spend=spend,
    )
