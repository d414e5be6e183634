"""A request's prompt as blocks in its tenant's namespace."""

import asyncio
from array import array

import msgspec

from gateway.domain.context import RequestContext
from gateway.domain.errors import PromptTooLong
from gateway.domain.model import EncodedPrompt, Model
from gateway.domain.prompt_blocks import NO_HASHES, PromptBlocks
from radix_cache.blocks import BlockHasher, Hashes, Tokens
from radix_cache.namespace import Namespace, Space, hasher_for

SPACES_MAX = 100_000
INLINE_TOKENS_MAX = 1 << 16
INLINE_IDS_MAX = 1 << 14
ESTIMATE_MARGIN = 2
"""A prompt may have so many times the tokens that it is estimated to have."""
COUNTED_CONTEXTS = 8
"""Prompts of so many contexts are counted for whoever asks; nobody pays for that."""
TEXT_FIELDS = frozenset({"echo", "suffix", "prompt_logprobs", "truncate_prompt_tokens", "add_special_tokens"})
"""Fields by which the text itself comes back, or is changed before it is read."""


class Prefixes:
    """Hashes prompts. `secret`: the deployment secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._spaces: dict[tuple[str, str], Space] = {}

    async def of(self, ctx: RequestContext) -> PromptBlocks:
        """The request's blocks. Raises BadRequest, PromptTooLong, TenantQueueFull."""
        length_max = _length_max(ctx)
        prompts = await ctx.model.encoder.encode(ctx.request, ctx.tenant, length_max)
        lengths = list(map(len, prompts))
        exact = ctx.model.encoder.exact and all(prompt.counted for prompt in prompts)
        if exact:
            _check_length(ctx, max(lengths), length_max)
        space = self.space(ctx.model, ctx.tenant.group)
        return PromptBlocks(
            namespace=space.namespace,
            hashes=await _hashes(prompts[0], space.hasher) if ctx.request.generates else NO_HASHES,
            prompt_tokens=sum(lengths),
            exact=exact,
            output_tokens_max=(
                _left_by_the_context(ctx, max(lengths) * (1 if exact else ESTIMATE_MARGIN), length_max)
                if ctx.request.shortens
                else _left_by_the_plan(ctx, max(lengths))
            ),
            ids=await _ids(prompts[0]) if exact and len(prompts) == 1 and _hands_tokens(ctx) else None,
        )

    async def count(self, ctx: RequestContext) -> int:
        """Tokens of the request's prompt, also where it is too long: who asks wants to know by how much.

        Raises what `of` raises, PromptTooLong for what is beyond COUNTED_CONTEXTS.
        """
        length_max = _length_max(ctx)
        bound = length_max * COUNTED_CONTEXTS if length_max is not None else None
        return sum(map(len, await ctx.model.encoder.encode(ctx.request, ctx.tenant, bound)))

    def space(self, model: Model, group: str) -> Space:
        """The cache of an isolation group at a model."""
        space = self._spaces.get((model.name, group))
        if space is None:
            if len(self._spaces) >= SPACES_MAX:
                self._spaces.clear()
            namespace = Namespace(model=model.name, block_size=model.block_size, group=group)
            space = self._spaces[model.name, group] = Space(namespace, hasher_for(namespace, self._secret))
        return space


async def _hashes(prompt: EncodedPrompt, hasher: BlockHasher) -> Hashes:
    """Of what is long, in a thread: a million tokens are 20 ms, in which other streams go on."""
    if len(prompt) <= INLINE_TOKENS_MAX:
        return prompt.hashes(hasher)
    return await asyncio.to_thread(prompt.hashes, hasher)


async def _ids(prompt: EncodedPrompt) -> bytes | None:
    """As JSON; of what is long, in a thread."""
    tokens = prompt.tokens
    if tokens is None or len(tokens) <= INLINE_IDS_MAX:
        return _json(tokens) if tokens is not None else None
    return await asyncio.to_thread(_json, tokens)


def _json(tokens: Tokens) -> bytes:
    """Slice by slice: a call keeps the interpreter until it returns."""
    starts = range(0, len(tokens), INLINE_IDS_MAX)
    slices = [msgspec.json.encode(tokens[at : at + INLINE_IDS_MAX].tolist())[1:-1] for at in starts]
    return b"[%b]" % b",".join(slices)


def _hands_tokens(ctx: RequestContext) -> bool:
    """Would the answer to its tokens be the very same, and did they not come as tokens?"""
    return (
        ctx.request.surface in ctx.model.hands_tokens
        and not TEXT_FIELDS & ctx.request.fields.keys()
        and not isinstance(ctx.request.prompt[0], list | array)
    )


def _length_max(ctx: RequestContext) -> int | None:
    """Tokens that a prompt and its answer may have; None where only the worker knows."""
    if not ctx.request.generates and "truncate_prompt_tokens" in ctx.request.fields:
        return None
    bounds = [b for b in (ctx.model.context_length, ctx.tenant.context.of(ctx.model.name)) if b is not None]
    return min(bounds, default=None)


def _check_length(ctx: RequestContext, prompt_tokens: int, length_max: int | None) -> None:
    """Refused before it costs anything, where the token count is the worker's own."""
    output_tokens = ctx.request.output_tokens_min
    if length_max is not None and prompt_tokens + output_tokens > length_max:
        raise PromptTooLong(
            prompt_tokens=prompt_tokens, output_tokens=output_tokens, context_length=length_max
        )


def _left_by_the_context(ctx: RequestContext, prompt_tokens: int, length_max: int | None) -> int | None:
    """Tokens for an answer whose client takes what there is; None where all that it asked for is left."""
    asked = ctx.request.output_tokens_max
    if asked is None or length_max is None or not prompt_tokens < length_max < prompt_tokens + asked:
        return None
    return length_max - prompt_tokens


def _left_by_the_plan(ctx: RequestContext, prompt_tokens: int) -> int | None:
    """Tokens for an answer that the client has not bounded: workers know nothing of plans."""
    bound = ctx.tenant.context.of(ctx.model.name)
    if bound is None or ctx.request.output_tokens_max is not None or not ctx.request.generates:
        return None
    # An estimated prompt may seem to fill the bound and not do so: one token would be no answer.
    return bound - prompt_tokens if prompt_tokens < bound else bound
