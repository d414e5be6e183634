"""Estimates of output tokens, to reserve and to expect: the client's bound and the mean of the tenant's answers."""

from collections import OrderedDict
from collections.abc import Sequence

from gateway.domain.request_context import RequestContext
from gateway.quotas.limit import OUTPUT_TOKENS, SPEND, TOTAL_TOKENS, Limit, Scope

FIRST_GUESS_TOKENS = 128.0
LEARNING_RATE = 0.1
REMEMBERED_MAX = 10_000


class OutputEstimates:
    """A running mean of answer lengths per tenant and model; the least recently used are dropped."""

    def __init__(self) -> None:
        self._means: OrderedDict[tuple[str, str], float] = OrderedDict()

    def expected(self, ctx: RequestContext) -> int:
        """Return the expected tokens of all answers together, at most the client's bound."""
        mean = int(self._means.get((ctx.tenant.id, ctx.model.name), FIRST_GUESS_TOKENS))
        limit = ctx.request.output_tokens_max
        return ctx.request.answers * (mean if limit is None else min(mean, limit))

    def reserved(self, ctx: RequestContext, scopes: Sequence[Scope], prompt_tokens: int) -> int:
        """Return the tokens to reserve within these limits: the client's own bound, else the expected ones.

        An expectation is no reason to refuse a request, since the answer may be short: it shrinks to fit the
        smallest limit.
        """
        asked = ctx.request.output_tokens_max
        if asked is not None:
            return ctx.request.answers * asked
        tokens = self.expected(ctx)
        for scope in scopes:
            for limit in scope.limits:
                bound = _output_tokens_of(limit, ctx, prompt_tokens) if limit.enforced else None
                if bound is not None and bound < tokens:
                    tokens = bound
        return max(0, tokens)

    def learn(self, ctx: RequestContext, output_tokens: int) -> None:
        """Learn that all answers of a request together had so many tokens."""
        if not ctx.request.answers:
            return
        key = (ctx.tenant.id, ctx.model.name)
        mean = self._means.pop(key, FIRST_GUESS_TOKENS)
        self._means[key] = mean + LEARNING_RATE * (output_tokens / ctx.request.answers - mean)
        if len(self._means) > REMEMBERED_MAX:
            self._means.popitem(last=False)


def _output_tokens_of(limit: Limit, ctx: RequestContext, prompt_tokens: int) -> int | None:
    """Return the tokens that the whole of a limit leaves for answers beside the prompt; None if it bounds none."""
    if limit.unit == TOTAL_TOKENS:
        return limit.amount - prompt_tokens
    if limit.unit == OUTPUT_TOKENS:
        return limit.amount
    if limit.unit == SPEND and ctx.model.prices is not None:
        return ctx.model.prices.output_tokens_for(limit.amount, prompt_tokens=prompt_tokens)
    return None
