"""How much of a load could have been cached at best: one endless cache per tenant that remembers every prompt.

The yardstick beside a measured hit ratio. It counts prompts from the moment they are sent; answers are not counted,
since an engine caches the tokens it generated, and their text need not come back as the same tokens.
"""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from radix_cache.blocks import BlockHasher
from radix_cache.tree import RadixTree
from workers.chat_template import ChatTemplate


class PossibleHits:
    """`directory`: the model's tokenizer and chat template. `block_size`: tokens that are cached together."""

    def __init__(self, directory: Path, block_size: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._template = ChatTemplate.from_directory(directory)
        self._hasher = BlockHasher(block_size=block_size)
        self._trees: dict[str, RadixTree[str]] = {}
        self._now = 0.0

    def asked(self, tenant: str, messages: Sequence[dict[str, Any]]) -> int:
        """Prompt tokens that were in the cache; afterwards the whole prompt is."""
        text = self._template.render(messages)
        tokens = array("I", self._tokenizer.encode(text, add_special_tokens=False).ids)
        hashes = self._hasher.of_tokens(tokens)
        tree = self._trees.setdefault(tenant, RadixTree())
        blocks = tree.match(hashes).get(tenant, 0)
        self._now += 1
        tree.record(hashes, tenant, self._now)
        return min(blocks * self._hasher.block_size, len(tokens) - 1)
