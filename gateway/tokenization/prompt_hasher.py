"""Encodes prompts and hashes their blocks, in the namespace of the model and the tenant's isolation group."""

import asyncio
from array import array

import msgspec

from gateway.domain.errors import PromptTooLong
from gateway.domain.model import EncodedPrompt, Model
from gateway.domain.prompt_blocks import NO_HASHES, PromptBlocks
from gateway.domain.request_context import RequestContext
from radix_cache.blocks import BlockHasher, Hashes, Tokens
from radix_cache.namespace import HashedNamespace, Namespace, hasher_for

MODEL_NAMESPACES_MAX = 100_000
"""The most pairs of model and isolation group for which the hasher is kept."""
INLINE_TOKENS_MAX = 1 << 16
"""Longer prompts are hashed in a thread."""
INLINE_IDS_MAX = 1 << 14
"""Longer prompts are written as JSON in a thread."""
ESTIMATE_MARGIN = 2
"""The factor by which a prompt may have more or fewer tokens than estimated."""
COUNT_CONTEXTS_MAX = 8
"""The longest prompt that is counted on request, in context lengths; counting is not charged."""
TEXT_FIELDS = frozenset({"echo", "suffix", "prompt_logprobs", "truncate_prompt_tokens", "add_special_tokens"})
"""Request fields that return the text, or change it before it is tokenized, so that token ids cannot replace it."""


class PromptHasher:
    """Encodes prompts, refuses those that are too long, and hashes their blocks with the deployment secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._namespaces: dict[tuple[str, str], HashedNamespace] = {}

    async def blocks(self, ctx: RequestContext) -> PromptBlocks:
        """Encode the request's prompt, and return its blocks with its token ids and the bound of its answer.

        Raises BadRequest, PromptTooLong, TenantQueueFull.
        """
        length_max = _length_max(ctx)
        prompts = await ctx.model.encoder.encode(ctx.request, ctx.tenant, length_max)
        longest = prompt_tokens = length_of_first = prompts[0].token_count
        if len(prompts) > 1:
            lengths = [prompt.token_count for prompt in prompts]
            longest, prompt_tokens = max(lengths), sum(lengths)
        exact = ctx.model.encoder.exact and all(prompt.count_exact for prompt in prompts)
        _check_length(ctx, longest, length_max, exact=exact)
        hashed = self.namespace(ctx.model, ctx.tenant.group)
        return PromptBlocks(
            namespace=hashed.namespace,
            hashes=NO_HASHES
            if not ctx.request.generates
            else await _block_hashes(prompts[0], length_of_first, hashed.hasher),
            prompt_tokens=prompt_tokens,
            exact=exact,
            output_tokens_max=(
                _output_bound_by_context(ctx, longest * (1 if exact else ESTIMATE_MARGIN), length_max)
                if ctx.request.accepts_shorter_answers
                else _output_bound_by_plan(ctx, longest)
            ),
            ids=await _ids_as_json(prompts[0])
            if exact and len(prompts) == 1 and _can_send_ids(ctx)
            else None,
        )

    async def count_tokens(self, ctx: RequestContext) -> int:
        """Return the token count of the request's prompt, even if it is too long for the model.

        Raises what `blocks` raises, but PromptTooLong only beyond COUNT_CONTEXTS_MAX context lengths.
        """
        length_max = _length_max(ctx)
        bound = length_max * COUNT_CONTEXTS_MAX if length_max is not None else None
        prompts = await ctx.model.encoder.encode(ctx.request, ctx.tenant, bound)
        return sum(prompt.token_count for prompt in prompts)

    def namespace(self, model: Model, group: str) -> HashedNamespace:
        """Return the namespace of an isolation group's cache at a model, with its block hasher."""
        hashed = self._namespaces.get((model.name, group))
        if hashed is None:
            if len(self._namespaces) >= MODEL_NAMESPACES_MAX:
                self._namespaces.clear()
            namespace = Namespace(model=model.name, block_size=model.block_size, group=group)
            hashed = self._namespaces[model.name, group] = HashedNamespace(
                namespace, hasher_for(namespace, self._secret)
            )
        return hashed


async def _block_hashes(prompt: EncodedPrompt, length: int, hasher: BlockHasher) -> Hashes:
    """Return the block hashes of a prompt of `length` tokens; a long one is hashed in a thread.

    A million tokens take 20 ms.
    """
    if length <= INLINE_TOKENS_MAX:
        return prompt.hashes(hasher)
    return await asyncio.to_thread(prompt.hashes, hasher)


async def _ids_as_json(prompt: EncodedPrompt) -> bytes | None:
    """Return the prompt's token ids as JSON, for long prompts made in a thread; None if the prompt is text."""
    tokens = prompt.tokens
    if tokens is None or len(tokens) <= INLINE_IDS_MAX:
        return _json(tokens) if tokens is not None else None
    return await asyncio.to_thread(_json, tokens)


def _json(tokens: Tokens) -> bytes:
    """Encode slice by slice, because a call keeps the GIL until it returns."""
    starts = range(0, len(tokens), INLINE_IDS_MAX)
    slices = [msgspec.json.encode(tokens[at : at + INLINE_IDS_MAX].tolist())[1:-1] for at in starts]
    return b"[%b]" % b",".join(slices)


def _can_send_ids(ctx: RequestContext) -> bool:
    """Return whether the worker can receive token ids in place of the text.

    The answer must be the same for both, and the client must not have sent token ids itself.
    """
    return (
        ctx.request.surface in ctx.model.surfaces_sent_as_ids
        and not TEXT_FIELDS & ctx.request.fields.keys()
        and not isinstance(ctx.request.prompt[0], list | array)
    )


def _length_max(ctx: RequestContext) -> int | None:
    """Return the most tokens of prompt and answer together; None if only the worker knows."""
    if not ctx.request.generates and "truncate_prompt_tokens" in ctx.request.fields:
        return None
    served, planned = ctx.model.context_length, ctx.tenant.context_bounds.tokens_max_of(ctx.model.name)
    if served is None or (planned is not None and planned < served):
        return planned
    return served


def _check_length(ctx: RequestContext, prompt_tokens: int, length_max: int | None, *, exact: bool) -> None:
    """Refuse a prompt that exceeds the context. Raises PromptTooLong.

    An estimated prompt is refused only if it is certain to exceed the context, even without the answer.
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


def _output_bound_by_context(ctx: RequestContext, prompt_tokens: int, length_max: int | None) -> int | None:
    """Return the answer's bound for a client that accepts a shorter answer; None if the requested length fits."""
    asked = ctx.request.output_tokens_max
    if asked is None or length_max is None or not prompt_tokens < length_max < prompt_tokens + asked:
        return None
    return length_max - prompt_tokens


def _output_bound_by_plan(ctx: RequestContext, prompt_tokens: int) -> int | None:
    """Return the answer's bound by the tenant's plan if the client set none, since workers do not know plans."""
    if ctx.request.output_tokens_max is not None or not ctx.request.generates:
        return None
    bound = ctx.tenant.context_bounds.tokens_max_of(ctx.model.name)
    if bound is None:
        return None
    # An estimated prompt may only seem to fill the bound; a bound of one token would then leave no answer.
    return bound - prompt_tokens if prompt_tokens < bound else bound
