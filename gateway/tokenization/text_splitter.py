"""Splits a text before it is encoded: at special tokens that absorb no neighbouring blanks."""

import re
from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

SLICE_CHARACTERS = 256 * 1024
"""Searched in one call: a regular expression keeps the GIL until it returns."""

SAMPLES = (" user\nIs it?  Yes. ", "assistant\n\n\tword 12 Ωmega")
"""Texts by which a tokenizer is tested for whether splitting changes its tokens."""


class TextSplitter:
    """Splits texts at special tokens; where several begin at one place, at the longest."""

    def __init__(self, special: Sequence[str]) -> None:
        longest_first = sorted(special, key=len, reverse=True)
        self._longest = len(longest_first[0])
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def pieces(self, text: str) -> Iterator[str]:
        """Yield the special tokens and the texts between them, in order and without empty ones.

        Joined, the pieces are the text.
        """
        cut, at = 0, 0
        while at < len(text):
            # A special token that begins in this slice may end behind it.
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

    That is so with tokenizers that put a blank before the first word of a text.
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
