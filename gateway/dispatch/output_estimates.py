"""How many tokens an answer will have: as bounded by the client, else as this tenant's answers had lately."""

from collections import OrderedDict
from collections.abc import Sequence

from gateway.domain.context import RequestContext
from gateway.quotas.limit import OUTPUT_TOKENS, SPEND, TOTAL_TOKENS, Limit, Scope

FIRST_GUESS_TOKENS = 128.0
LEARNING_RATE = 0.1
REMEMBERED_MAX = 10_000


class OutputEstimates:
    """A running mean per tenant and model; the least recently seen are forgotten."""

    def __init__(self) -> None:
        self._means: OrderedDict[tuple[str, str], float] = OrderedDict()

    def expected(self, ctx: RequestContext) -> int:
        """Tokens of all answers together, as they are expected. The client's bound is an upper one."""
        mean = int(self._means.get((ctx.tenant.id, ctx.model.name), FIRST_GUESS_TOKENS))
        limit = ctx.request.output_tokens_max
        return ctx.request.answers * (mean if limit is None else min(mean, limit))

    def reserved(self, ctx: RequestContext, scopes: Sequence[Scope], prompt_tokens: int) -> int:
        """Tokens to reserve within these limits: the client's own bound, else what is expected.

        An expectation is no reason to refuse what may be short: it shrinks to fit the smallest limit.
        """
        limit = ctx.request.output_tokens_max
        if limit is not None:
            return ctx.request.answers * limit
        limits = (limit for scope in scopes for limit in scope.limits if limit.enforced)
        bounds = (_output_tokens_of(limit, ctx, prompt_tokens) for limit in limits)
        return max(0, min([self.expected(ctx), *(bound for bound in bounds if bound is not None)]))

    def learn(self, ctx: RequestContext, output_tokens: int) -> None:
        """An answer had so many tokens."""
        if not ctx.request.answers:
            return
        key = (ctx.tenant.id, ctx.model.name)
        mean = self._means.pop(key, FIRST_GUESS_TOKENS)
        self._means[key] = mean + LEARNING_RATE * (output_tokens / ctx.request.answers - mean)
        if len(self._means) > REMEMBERED_MAX:
            self._means.popitem(last=False)


def _output_tokens_of(limit: Limit, ctx: RequestContext, prompt_tokens: int) -> int | None:
    """What the whole of a limit leaves for answers beside the prompt; None where it bounds none."""
    if limit.unit == TOTAL_TOKENS:
        return limit.amount - prompt_tokens
    if limit.unit == OUTPUT_TOKENS:
        return limit.amount
    if limit.unit == SPEND and ctx.model.prices is not None:
        return ctx.model.prices.output_tokens_for(limit.amount, prompt_tokens=prompt_tokens)
    return None
