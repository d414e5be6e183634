"""Calculates the best possible cache hits of a workload: one cache of unlimited size per tenant.

Measured hit ratios are compared with the result. Prompts are cached from the time they are sent, and answers from
their end. An engine may reach a little less: it caches the tokens that it generated, and their text may be encoded
as other tokens in the next prompt.
"""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from radix_cache.blocks import BlockHasher, Hashes, Tokens
from radix_cache.tree import RadixTree
from workers.chat_template import ChatTemplate


class IdealCache:
    """A prefix cache of unlimited size for each tenant.

    Args:
        directory: directory with the tokenizer and the chat template of the model.
        block_size: tokens that are cached together.
    """

    def __init__(self, directory: Path, block_size: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._template = ChatTemplate.from_directory(directory)
        self._hasher = BlockHasher(block_size=block_size)
        self._trees: dict[str, RadixTree[str]] = {}
        self._now = 0.0

    def add_prompt(self, tenant: str, messages: Sequence[dict[str, Any]]) -> int:
        """Add a prompt to the cache, and return the number of its tokens that were cached before."""
        tokens = self._tokens(messages, answering=True)
        hashes = self._hasher.of_tokens(tokens)
        blocks = self._tree(tenant).match(hashes).get(tenant, 0)
        self._record(tenant, hashes)
        return min(blocks, (len(tokens) - 1) // self._hasher.block_size) * self._hasher.block_size

    def add_answer(self, tenant: str, messages: Sequence[dict[str, Any]]) -> None:
        """Add a conversation with its last answer to the cache."""
        self._record(tenant, self._hasher.of_tokens(self._tokens(messages, answering=False)))

    def _record(self, tenant: str, hashes: Hashes) -> None:
        self._now += 1
        self._tree(tenant).record(hashes, tenant, self._now)

    def _tree(self, tenant: str) -> RadixTree[str]:
        return self._trees.setdefault(tenant, RadixTree())

    def _tokens(self, messages: Sequence[dict[str, Any]], *, answering: bool) -> Tokens:
        text = self._template.render(messages, add_generation_prompt=answering)
        return array("I", self._tokenizer.encode(text, add_special_tokens=False).ids)
