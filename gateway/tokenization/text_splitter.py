"""Where a text may be cut before it is encoded: at special tokens that take no neighbouring blanks with them."""

import re
from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

SLICE_CHARACTERS = 256 * 1024
"""Searched in one go: a search keeps the interpreter until it returns."""

SAMPLES = (" user\nIs it?  Yes. ", "assistant\n\n\tword 12 Ωmega")


class Cutter:
    """Cuts at any of these; of several that begin at one place, at the longest."""

    def __init__(self, special: Sequence[str]) -> None:
        longest_first = sorted(special, key=len, reverse=True)
        self._longest = len(longest_first[0])
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def pieces(self, text: str) -> Iterator[str]:
        """The special tokens and what stands between them, in order; together they are the text. None is empty."""
        cut, at = 0, 0
        while at < len(text):
            # One that begins in this slice may end behind it.
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


def cutter_of(tokenizer: Tokenizer) -> Cutter | None:
    """None if pieces would be encoded differently from the whole, as with tokenizers that put a blank before the
    first word of a text: then nothing is cut.
    """
    special = [
        token.content
        for token in tokenizer.get_added_tokens_decoder().values()
        if token.special and token.content and not (token.lstrip or token.rstrip or token.single_word)
    ]
    if not special:
        return None
    cutter = Cutter(special)
    for sample in SAMPLES:
        whole = sample.join(special[:3]) + sample
        encodings = [tokenizer.encode(piece, add_special_tokens=False) for piece in cutter.pieces(whole)]
        apart = [token for encoding in encodings for token in encoding.ids]
        if apart != tokenizer.encode(whole, add_special_tokens=False).ids:
            return None
    return cutter
