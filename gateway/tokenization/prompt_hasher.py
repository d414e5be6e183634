"""Encodes prompts and hashes their blocks, in the namespace of the model and the tenant's isolation group."""

import asyncio
from array import array

import msgspec

from gateway.domain.model import EncodedPrompt, Model
from gateway.domain.prompt_blocks import NO_HASHES, PromptBlocks
from gateway.domain.request_context import RequestContext
from gateway.tokenization.context_bounds import (
    ESTIMATE_MARGIN,
    check_length,
    context_length_max,
    output_bound_by_context,
    output_bound_by_plan,
)
from radix_cache.blocks import BlockHasher, Hashes, Tokens
from radix_cache.namespace import HashedNamespace, Namespace, hasher_for

MODEL_NAMESPACES_MAX = 100_000
"""The most pairs of model and isolation group for which the hasher is kept."""
INLINE_TOKENS_MAX = 1 << 16
"""Longer prompts are hashed in a thread."""
INLINE_IDS_MAX = 1 << 14
"""Longer prompts are written as JSON in a thread."""
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
        length_max = context_length_max(ctx)
        prompts = await ctx.model.encoder.encode(ctx.request, ctx.tenant, length_max)
        longest = prompt_tokens = length_of_first = prompts[0].token_count
        if len(prompts) > 1:
            lengths = [prompt.token_count for prompt in prompts]
            longest, prompt_tokens = max(lengths), sum(lengths)
        exact = ctx.model.encoder.exact and all(prompt.count_exact for prompt in prompts)
        check_length(ctx, longest, length_max, exact=exact)
        hashed = self.namespace(ctx.model, ctx.tenant.group)
        return PromptBlocks(
            namespace=hashed.namespace,
            hashes=NO_HASHES
            if not ctx.request.generates
            else await _block_hashes(prompts[0], length_of_first, hashed.hasher),
            prompt_tokens=prompt_tokens,
            exact=exact,
            output_tokens_max=(
                output_bound_by_context(ctx, longest * (1 if exact else ESTIMATE_MARGIN), length_max)
                if ctx.request.accepts_shorter_answers
                else output_bound_by_plan(ctx, longest)
            ),
            ids=await _ids_as_json(prompts[0])
            if exact and len(prompts) == 1 and _can_send_ids(ctx)
            else None,
        )

    async def count_tokens(self, ctx: RequestContext) -> int:
        """Return the token count of the request's prompt, even if it is too long for the model.

        Raises what `blocks` raises, but PromptTooLong only beyond COUNT_CONTEXTS_MAX context lengths.
        """
        length_max = context_length_max(ctx)
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
