"""How much of a load could have been cached at best: one endless cache per tenant that remembers everything.

The yardstick beside a measured hit ratio: prompts from the moment they are sent, and answers from their end. An
engine may have a little less: it caches the tokens that it generated, and their text can come back as other tokens.
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
    """`directory`: the model's tokenizer and chat template. `block_size`: tokens that are cached together."""

    def __init__(self, directory: Path, block_size: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._template = ChatTemplate.from_directory(directory)
        self._hasher = BlockHasher(block_size=block_size)
        self._trees: dict[str, RadixTree[str]] = {}
        self._now = 0.0

    def asked(self, tenant: str, messages: Sequence[dict[str, Any]]) -> int:
        """Prompt tokens that were in the cache; afterwards the whole prompt is."""
        tokens = self._tokens(messages, answering=True)
        hashes = self._hasher.of_tokens(tokens)
        blocks = self._tree(tenant).match(hashes).get(tenant, 0)
        self._record(tenant, hashes)
        return min(blocks, (len(tokens) - 1) // self._hasher.block_size) * self._hasher.block_size

    def answered(self, tenant: str, messages: Sequence[dict[str, Any]]) -> None:
        """The conversation, its last answer included, is in the cache."""
        self._record(tenant, self._hasher.of_tokens(self._tokens(messages, answering=False)))

    def _record(self, tenant: str, hashes: Hashes) -> None:
        self._now += 1
        self._tree(tenant).record(hashes, tenant, self._now)

    def _tree(self, tenant: str) -> RadixTree[str]:
        return self._trees.setdefault(tenant, RadixTree())

    def _tokens(self, messages: Sequence[dict[str, Any]], *, answering: bool) -> Tokens:
        text = self._template.render(messages, add_generation_prompt=answering)
        return array("I", self._tokenizer.encode(text, add_special_tokens=False).ids)
