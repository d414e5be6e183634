"""A request's prompt as routing and quotas get it: hashed blocks and token counts, without the text."""

from array import array

import msgspec

from radix_cache.blocks import Hashes
from radix_cache.namespace import Namespace

NO_HASHES: Hashes = array("Q")


class PromptBlocks(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The block hashes and token counts of a request's prompt."""

    namespace: Namespace
    hashes: Hashes
    """Chained hashes of the first prompt's full blocks."""
    prompt_tokens: int
    """Tokens of all prompts of the request together."""
    exact: bool
    """True when the tokens are the worker's own; False when they are estimated."""
    output_tokens_max: int | None = None
    """The bound of each answer where it differs from the client's; else None. It is what the tenant's plan leaves
    if the client set no bound, and what the context has left if the client accepts a shorter answer."""
    ids: bytes | None = None
    """The prompt's token ids as JSON, where the worker receives them in place of the text."""

    def matched_tokens(self, blocks: int) -> int:
        """Return how many prompt tokens need no prefill on a worker that holds `blocks` leading blocks.

        The last token is always computed, since it yields the logits; engines then compute its whole block.
        """
        size = self.namespace.block_size
        return min(blocks, max(self.prompt_tokens - 1, 0) // size) * size
