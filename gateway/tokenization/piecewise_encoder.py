"""Encodes texts with a tokenizer; very long ones piece by piece, until a text has too many tokens.

An encoding takes up to 300 bytes of memory per character; 16 MB of digits took 5 GB before they were found too
long.

    one text      | piece | piece | piece ...           cut between words: the tokens are those of the whole text
    aaaaaaaaaa    counted in pieces; encoded whole only if it may fit by that count
"""

import re
from array import array
from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

from radix_cache.blocks import Tokens

PIECE_CHARACTERS = 256 * 1024
COUNTED_CHARACTERS = 64 * 1024
WHOLE_CHARACTERS_MAX = 2_000_000
"""The most characters of a piece that cannot be cut. Languages without spaces have commas and full stops."""
COUNT_TOLERANCE = 1.25
"""The factor by which the token count of arbitrary pieces may exceed that of the whole text."""

TOKENS_MAX = 2_000_000
"""The most tokens of one prompt if the model's context length is unknown."""

SAMPLES = (
    "one two three",
    "An end. Then\nmore lines\nfollow here",
    "word0 wordy it's done\nThe x = f(a, b) ok",
    "Ωmega word 漢字 word\t tab word\n\nend, (a.b) c.",
    "漢字、漢字。かな 漢字\n한국어 말, 漢字，字。",
)
"""Test texts that show whether cutting between words changes a tokenizer's tokens."""

_LETTER = "A-Za-z\\u3040-\\u30ff\\u4e00-\\u9fff\\uac00-\\ud7af"
_CUT = re.compile(rf"(?<=[{_LETTER}])(?=[ \n][{_LETTER}]|[,.\u3001\u3002\uff0c])")


class TooManyTokens(Exception):
    """A text has more tokens than allowed; `at_least` is a lower bound of their number."""

    def __init__(self, at_least: int) -> None:
        super().__init__(at_least)
        self.at_least = at_least


class EncodingFailed(Exception):
    """The tokenizer cannot encode a text."""


class PiecewiseEncoder:
    """Encodes texts with one tokenizer, in pieces where that gives the tokens of the whole text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cuts_are_safe = all(map(self._same_when_cut, SAMPLES))

    def encode(self, texts: Sequence[str], *, special: bool, tokens_max: int, together: bool) -> list[Tokens]:
        """Return the tokens of each text. Raises EncodingFailed, and TooManyTokens as soon as that is known.

        Args:
            texts: The texts to encode.
            special: Add special tokens to each text.
            tokens_max: The largest number of tokens.
            together: Whether `tokens_max` applies to all texts together, or to each of them.
        """
        found, total, most = list[Tokens](), 0, 0
        for batch in _batches(texts):
            if most > tokens_max:
                raise TooManyTokens(most)
            room = tokens_max - total if together else tokens_max
            if len(batch) == 1 and len(batch[0]) > PIECE_CHARACTERS:
                encoded = [self._encode_long(batch[0], special, room)]
            else:
                encoded = self._encode(batch, special)
            found += encoded
            total += sum(map(len, encoded))
            most = total if together else max(map(len, encoded), default=0)
        return found

    def _encode_long(self, text: str, special: bool, tokens_max: int) -> Tokens:
        if not self._cuts_are_safe or (special and self._adds_special_tokens()):
            return self._encode_whole(text, special, tokens_max)
        tokens: Tokens = array("I")
        for piece in _pieces(text):
            if len(tokens) > tokens_max:
                raise TooManyTokens(len(tokens))
            if len(piece) > 2 * PIECE_CHARACTERS:
                tokens.extend(self._encode_whole(piece, False, tokens_max - len(tokens)))
            else:
                tokens.extend(self._encode([piece], False)[0])
        return tokens

    def _encode_whole(self, text: str, special: bool, tokens_max: int) -> Tokens:
        """Encode a text that cannot be cut, unless a count in arbitrary pieces shows that it is too long."""
        counted = 0
        for at in range(0, min(len(text), WHOLE_CHARACTERS_MAX), COUNTED_CHARACTERS):
            counted += len(self._encode([text[at : at + COUNTED_CHARACTERS]], False)[0])
            if counted > COUNT_TOLERANCE * tokens_max:
                raise TooManyTokens(int(counted / COUNT_TOLERANCE))
        if self._cuts_are_safe and len(text) > WHOLE_CHARACTERS_MAX:
            raise EncodingFailed("a text without any space between words")
        return self._encode([text], special)[0]

    def _encode(self, texts: Sequence[str], special: bool) -> list[Tokens]:
        try:
            # Unlike `encode`, this lets other threads run meanwhile.
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
        except Exception as err:
            raise EncodingFailed(str(err)) from err
        except BaseException as err:
            # A panic in the tokenizer's own code, for example in its regular expressions at a million spaces.
            if type(err).__module__ != "pyo3_runtime":
                raise
            raise EncodingFailed("the tokenizer panicked") from err
        return [array("I", encoding.ids) for encoding in encodings]

    def _adds_special_tokens(self) -> bool:
        return self._tokenizer.num_special_tokens_to_add(is_pair=False) > 0

    def _same_when_cut(self, sample: str) -> bool:
        apart = [token for tokens in self._encode(_CUT.split(sample), False) for token in tokens]
        return apart == self._encode([sample], False)[0].tolist()


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the texts in order, in groups no longer than a piece; a longer text is a group of its own."""
    batch, size = list[str](), 0
    for text in texts:
        if batch and size + len(text) > PIECE_CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def _pieces(text: str) -> Iterator[str]:
    """Yield the text in pieces, cut at the first end of a word after the length of a piece."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        cut = _CUT.search(text, start + PIECE_CHARACTERS)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]
