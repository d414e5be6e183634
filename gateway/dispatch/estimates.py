"""How many tokens an answer will have: as bounded by the client, else as this tenant's answers had lately."""

from collections import OrderedDict

from gateway.context import RequestContext
from gateway.quotas.quota import REQUESTS

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

    def reserved(self, ctx: RequestContext, prompt_tokens: int) -> int:
        """Tokens to reserve: the client's own bound, else what is expected.

        An expectation is no reason to refuse what may be short: it shrinks to fit the smallest limit.
        """
        limit = ctx.request.output_tokens_max
        if limit is not None:
            return ctx.request.answers * limit
        limits = (limit for scope in ctx.tenant.scopes for limit in scope.limits)
        amounts = [int(limit.bucket.amount) for limit in limits if limit.unit != REQUESTS]
        return max(0, min([self.expected(ctx), *(amount - prompt_tokens for amount in amounts)]))

    def learn(self, ctx: RequestContext, output_tokens: int) -> None:
        """An answer had so many tokens."""
        if not ctx.request.answers:
            return
        key = (ctx.tenant.id, ctx.model.name)
        mean = self._means.pop(key, FIRST_GUESS_TOKENS)
        self._means[key] = mean + LEARNING_RATE * (output_tokens / ctx.request.answers - mean)
        if len(self._means) > REMEMBERED_MAX:
            self._means.popitem(last=False)
