"""Whether a prompt and its answer fit the context, and how long the answer may be beside the prompt."""

from gateway.domain.errors import PromptTooLong
from gateway.domain.request_context import RequestContext

ESTIMATE_MARGIN = 2
"""The factor by which a prompt may have more or fewer tokens than estimated."""


def context_length_max(ctx: RequestContext) -> int | None:
    """Return the most tokens of prompt and answer together; None if only the worker has the bound."""
    if not ctx.request.generates and "truncate_prompt_tokens" in ctx.request.fields:
        return None
    served, planned = ctx.model.context_length, ctx.tenant.context_bounds.tokens_max_of(ctx.model.name)
    if served is None or (planned is not None and planned < served):
        return planned
    return served


def check_length(ctx: RequestContext, prompt_tokens: int, length_max: int | None, *, exact: bool) -> None:
    """Refuse a prompt that exceeds the context. Raises PromptTooLong.

    An estimated prompt is refused only if half of it (ESTIMATE_MARGIN) and a token of the answer exceed the
    context.
    """
    if length_max is None:
        return
    output_tokens = ctx.request.output_tokens_needed if exact else int(ctx.request.generates)
    if not exact:
        prompt_tokens //= ESTIMATE_MARGIN
    if prompt_tokens + output_tokens > length_max:
        raise PromptTooLong(
            prompt_tokens=prompt_tokens, output_tokens=output_tokens, context_length=length_max, exact=exact
        )


def output_bound_by_context(ctx: RequestContext, prompt_tokens: int, length_max: int | None) -> int | None:
    """Return the answer's bound for a client that accepts a shorter answer; None if the requested length fits."""
    asked = ctx.request.output_tokens_max
    if asked is None or length_max is None or not prompt_tokens < length_max < prompt_tokens + asked:
        return None
    return length_max - prompt_tokens


def output_bound_by_plan(ctx: RequestContext, prompt_tokens: int) -> int | None:
    """Return the answer's bound by the tenant's plan if the client set none, since workers enforce no plans."""
    if ctx.request.output_tokens_max is not None or not ctx.request.generates:
        return None
    bound = ctx.tenant.context_bounds.tokens_max_of(ctx.model.name)
    if bound is None:
        return None
    # An estimated prompt may only seem to fill the bound; a bound of one token would then leave no answer.
    return bound - prompt_tokens if prompt_tokens < bound else bound
