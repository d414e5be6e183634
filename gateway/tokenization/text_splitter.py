"""Splits a text before it is encoded, at special tokens that do not absorb adjacent spaces."""

import re
from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

SLICE_CHARACTERS = 256 * 1024
"""The characters that are searched in one call, since a regular expression holds the GIL until it returns."""

SAMPLES = (" user\nIs it?  Yes. ", "assistant\n\n\tword 12 Ωmega")
"""Test texts that show whether splitting changes a tokenizer's tokens."""


class TextSplitter:
    """Splits texts at special tokens; of several that begin at one place, the longest counts."""

    def __init__(self, special: Sequence[str]) -> None:
        longest_first = sorted(special, key=len, reverse=True)
        self._longest = len(longest_first[0])
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def pieces(self, text: str) -> Iterator[str]:
        """Yield the special tokens and the texts between them, in order, without empty ones.

        The pieces add up to the whole text.
        """
        cut, at = 0, 0
        while at < len(text):
            # A special token that begins in this slice may end after it.
            end = min(at + SLICE_CHARACTERS, len(text))
            found = self._pattern.search(text, at, min(end + self._longest - 1, len(text)))
            if found is None or found.start() >= end:
                at = end
                continue
            if found.start() > cut:
                yield text[cut : found.start()]
            yield found[0]
            cut = at = found.end()
        if cut < len(text):
            yield text[cut:]


def splitter_for(tokenizer: Tokenizer) -> TextSplitter | None:
    """Return the tokenizer's splitter; None if pieces would be encoded differently from the whole text.

    That is the case for tokenizers that put a space before the first word of a text.
    """
    special = [
        token.content
        for token in tokenizer.get_added_tokens_decoder().values()
        if token.special and token.content and not (token.lstrip or token.rstrip or token.single_word)
    ]
    if not special:
        return None
    splitter = TextSplitter(special)
    for sample in SAMPLES:
        whole = sample.join(special[:3]) + sample
        encodings = [tokenizer.encode(piece, add_special_tokens=False) for piece in splitter.pieces(whole)]
        apart = [token for encoding in encodings for token in encoding.ids]
        if apart != tokenizer.encode(whole, add_special_tokens=False).ids:
            return None
    return splitter
