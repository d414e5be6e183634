"""The tokens that a request is charged for: the worker's count, else the gateway's own.

    an answer with usage          the worker's count
    a refused request             no tokens
    a stream that was cut         the running usage of its choices, else the tokens of the text that came: at least
                                  one for each frame that was passed on, and none before the first one
    a whole answer, abandoned     the tokens for which the worker had time, in each choice: an estimate
    an impossible count           the tokens of the text, as of a stream

In the last three cases the prompt has the tokens that the gateway counted, or those of the running usage where
there is one; the answer is never counted as longer than it could have been.

A count is impossible if it exceeds what was asked for or what fits into the model's context. It is not charged: it
would use up the tenant's quotas and budgets for as long as these last.

Attempts.end makes the gateway's own count when an attempt ends (attempts.py); Reservations.settle charges.
"""

import logging
from collections.abc import Callable

from gateway.dispatch.placement import Placement
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.domain.request_context import RequestContext
from gateway.domain.token_usage import ChargedTokens, TokenUsage
from gateway.telemetry.progress import Progress

log = logging.getLogger(__name__)

WARNED_SECONDS = 60.0
WARNED_MAX = 1000
"""Workers for which the time of the last warning is kept."""

CONTEXT_LENGTH_MAX = 2**20
"""Tokens that prompt and answer may have together, where the model's `context_length` is unknown."""


class ImpossibleUsage:
    """Finds impossible counts, and warns of each worker that reports them, once a minute at most."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds on the monotonic clock."""
        self._clock = clock
        self._warned_until: dict[str | None, float] = {}
        """By worker: until when it is not warned of again."""

    def forget(self, ctx: RequestContext, prompt: PromptBlocks, progress: Progress) -> None:
        """Drop the worker's count if it is impossible."""
        usage = progress.usage
        if usage is None:
            return
        prompts = 1 if ctx.request.surface == "chat/completions" else max(1, len(ctx.request.prompt))
        context_length = ctx.model.context_length or CONTEXT_LENGTH_MAX
        answers = max(1, ctx.request.answers)
        if (
            usage.prompt_tokens <= context_length * prompts
            and (usage.completion_tokens or 0) <= _answer_tokens_max(ctx, prompt) * answers
        ):
            return
        progress.usage, progress.usage_impossible = None, True
        self._warn(ctx, progress.worker, usage)

    def _warn(self, ctx: RequestContext, worker: str | None, usage: TokenUsage) -> None:
        now = self._clock()
        if now < self._warned_until.get(worker, 0.0):
            return
        if len(self._warned_until) >= WARNED_MAX:
            self._warned_until.clear()
        self._warned_until[worker] = now + WARNED_SECONDS
        log.warning(
            "request %s: worker %s reported %d prompt tokens and %d output tokens, more than there can be",
            *(ctx.id, worker, usage.prompt_tokens, usage.completion_tokens or 0),
        )


def tokens_to_charge(progress: Progress) -> ChargedTokens | None:
    """Return what the request is charged for; None if nothing was computed for it."""
    usage = progress.usage
    if usage is not None:
        return ChargedTokens(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens or 0,
        )
    if progress.worker_refused:
        return ChargedTokens(prompt_tokens=0)
    if progress.own_count is not None:
        return progress.own_count
    if progress.dispatched:
        return ChargedTokens(prompt_tokens=progress.prompt_tokens, output_tokens=progress.frames)
    return None


def own_count(
    ctx: RequestContext, prompt: PromptBlocks, progress: Progress, placement: Placement, now: float
) -> ChargedTokens:
    """Return the tokens to charge for a request that was sent to a worker and has no usage.

    `now`: seconds on the monotonic clock.
    """
    tally, answers = progress.tally, ctx.request.answers
    most = _answer_tokens_max(ctx, prompt) * max(1, answers)
    if tally is None:
        output_tokens = progress.frames
        if answers and not ctx.request.stream and not progress.answered:
            output_tokens = answers * _tokens_since(progress, placement, now)
        return ChargedTokens(prompt_tokens=prompt.prompt_tokens, output_tokens=min(output_tokens, most))
    usage = tally.usage if not progress.usage_impossible else None
    if usage is None:
        output_tokens = max(progress.frames, tally.text_tokens(ctx.model.encoder.count_answer_text))
        return ChargedTokens(prompt_tokens=prompt.prompt_tokens, output_tokens=min(output_tokens, most))
    # Running usage has the prompt of a single choice: that of the request only if all choices are of one prompt.
    one_prompt = answers == ctx.request.choices
    return ChargedTokens(
        prompt_tokens=usage.prompt_tokens if one_prompt else prompt.prompt_tokens,
        cached_tokens=usage.cached_tokens if one_prompt else None,
        output_tokens=min(usage.completion_tokens or 0, most),
    )


def _answer_tokens_max(ctx: RequestContext, prompt: PromptBlocks) -> int:
    """Return the tokens that one answer can have."""
    context_length = ctx.model.context_length or CONTEXT_LENGTH_MAX
    return min(prompt.output_tokens_max or ctx.request.output_tokens_max or context_length, context_length)


def _tokens_since(progress: Progress, placement: Placement, now: float) -> int:
    """Return for how many tokens of each answer the worker had time, by its speed."""
    if progress.dispatched_at is None:
        return 0
    seconds = now - progress.dispatched_at - (progress.predicted_ttft_seconds or 0.0)
    return max(0, int(1000 * seconds / placement.worker.learnt.speed.step_ms))
