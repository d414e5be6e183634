"""What a request costs: at most, when quota is reserved for it; and what it did cost, when that is settled."""

from gateway.domain.context import RequestContext
from gateway.quotas.prices import Prices
from gateway.quotas.quota import Cost, Units
from gateway.telemetry.record import Progress, Used


def reserved(ctx: RequestContext, *, prompt_tokens: int, output_tokens: int) -> Cost:
    """Nobody knows yet what of the prompt is cached."""
    prices = ctx.model.prices
    return Cost(
        prompt_tokens=prompt_tokens,
        cached_tokens=None,
        output_tokens=output_tokens,
        spend=prices.cost_at_most(prompt_tokens=prompt_tokens, output_tokens=output_tokens) if prices else 0,
    )


def not_yet_settled(found: Used | None, cost: Cost | None, earlier: Units | None) -> tuple[Used | None, int]:
    """What the accounts add to what earlier attempts under the client's own key were settled to, and its price.

    All attempts together come to the dearest of them, in tokens of the prompt, of the answer, and in money: as
    quotas charge them. Cached tokens are some of the prompt's.
    """
    if found is None or cost is None or earlier is None:
        return found, cost.spend if cost is not None else 0
    _, _, cached, output, total, spend = earlier
    prompt_tokens = max(0, found.prompt_tokens - (total - output))
    cached_tokens = found.cached_tokens
    if cached_tokens is not None:
        cached_tokens = min(prompt_tokens, max(0, cached_tokens - cached))
    return Used(
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        output_tokens=max(0, found.output_tokens - output),
    ), max(0, cost.spend - spend)


def used(progress: Progress, prices: Prices | None) -> Cost | None:
    """As the worker reports it, else as it was seen; None if nothing was computed for it.

    `prices`: of who did.
    """
    found = progress.used()
    if found is None:
        return None
    cached_tokens = found.cached_tokens or 0
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
