"""What a request costs: at most, when quota is reserved for it; and what it did cost, when that is settled."""

from gateway.context import RequestContext
from gateway.quotas.quota import Cost
from gateway.telemetry.record import Progress


def reserved(ctx: RequestContext, *, prompt_tokens: int, output_tokens: int) -> Cost:
    """Nobody knows yet what of the prompt is cached."""
    prices = ctx.model.prices
    return Cost(
        prompt_tokens=prompt_tokens,
        cached_tokens=None,
        output_tokens=output_tokens,
        spend=prices.cost_at_most(prompt_tokens=prompt_tokens, output_tokens=output_tokens) if prices else 0,
    )


def used(ctx: RequestContext, progress: Progress) -> Cost | None:
    """As the worker reports it, else as it was seen; None if nothing was computed for it."""
    found = progress.used()
    if found is None:
        return None
    prices, cached_tokens = ctx.model.prices, found.cached_tokens or 0
    spend = 0
    if prices is not None:
        spend = prices.cost(
            prompt_tokens=found.prompt_tokens, cached_tokens=cached_tokens, output_tokens=found.output_tokens
        )
    return Cost(
        prompt_tokens=found.prompt_tokens,
        cached_tokens=cached_tokens,
        output_tokens=found.output_tokens,
        spend=spend,
    )
