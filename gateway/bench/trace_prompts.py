"""Generates prompts for a trace: equal block ids become equal text, and different ids different text.

A block of 512 tokens becomes 512 words, drawn with the block's id as the seed. With the model's tokenizer, only
words are drawn that are one token each after a space, so that lengths are right to a token or two. Without a
tokenizer the words are short common ones, which are one token in every large vocabulary.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from gateway.tokenization.tokenizer_file import read_tokenizer
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest

BLOCKS_REMEMBERED = 4096
WORDS_MAX = 2000

COMMON_TEXT = """
    about after again air all along also and any are around ask away back been before below between both
    but call came can change come could day did different does down each earth end even every far find
    first follow food form found from get give good great had hand hard has have head help here high him
    home house how into just keep kind know land large last learn left life light like line little live
    long look made make man many may mean men more most mother move much must name near need never new
    next night not now number off old one only open other our out over own page paper part people
    picture place plant play point right run said same saw say school sea see seem set she should show
    side small some something soon spell stand start still stop story study such take tell than that the
    their them then there these they thing think this those thought three through time together too took
    tree try turn two under until use very walk want was watch water way well went were what when where
    which while white who why will with without word work world would write year you young your
"""

COMMON = COMMON_TEXT.split()


class TracePrompts:
    """Generates the text of prompts.

    Args:
        tokenizer: directory with tokenizer.json, or None.
        seed: seed of the texts.

    Raises:
        ValueError: the tokenizer cannot be read.
    """

    def __init__(self, tokenizer: Path | None = None, *, seed: int = 0) -> None:
        self._seed = seed
        self._words = COMMON
        self._tokenizer = None
        if tokenizer is not None:
            self._tokenizer, _ = read_tokenizer(tokenizer)
            self._words = _single_tokens(self._tokenizer) or COMMON
        self._block = lru_cache(BLOCKS_REMEMBERED)(self._block_words)

    def text(self, request: TraceRequest) -> str:
        """Return the prompt of a request, of about `prompt_tokens` tokens."""
        words: list[str] = []
        for block in request.blocks:
            words += self._block(block)
        return " ".join(words[: request.prompt_tokens])

    def tokens_per_word(self, requests: Sequence[TraceRequest]) -> float | None:
        """Return the mean number of tokens per word, which is 1 at best; None without a tokenizer."""
        if self._tokenizer is None or not requests:
            return None
        words = sum(request.prompt_tokens for request in requests)
        encoded = (self._tokenizer.encode(self.text(r), add_special_tokens=False) for r in requests)
        return sum(len(one.ids) for one in encoded) / words

    def _block_words(self, block: int) -> list[str]:
        return Random(f"{self._seed} {block}").choices(self._words, k=BLOCK_TOKENS)


def _single_tokens(tokenizer: Tokenizer) -> list[str]:
    """Return words of ASCII letters that are one token each inside a text."""
    words = sorted(
        word
        for token in tokenizer.get_vocab()
        if (word := token.lstrip("\u0120\u2581")) != token and word.isascii() and word.isalpha()
    )
    chosen = Random(0).sample(words, min(len(words), WORDS_MAX))
    return [
        word for word in chosen if len(tokenizer.encode(f"a {word} a", add_special_tokens=False).ids) == 3
    ]
