"""Grammars by llguidance, an optional library: imported here (and in `trial`), and only when it is needed."""

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from workers.engine.grammar.matcher import mask_words

if TYPE_CHECKING:
    from llguidance import LLMatcher

STATES_MAX = 50_000
"""States of one answer's lexer, about 2 kB each; beyond them the answer is aborted."""


def is_installed() -> bool:
    """Is the library there?"""
    return importlib.util.find_spec("llguidance") is not None


NO_TEXT = "no text matches it"
_NOWHERE_TO_GO = "NoExtensionBias"
"""llguidance's name for a place that nothing follows, and where the grammar may not end: its beginning here."""


class GuidedMatcher:
    """A Matcher over llguidance's, which never raises but falls into a state of error."""

    def __init__(self, matcher: "LLMatcher", vocab_size: int) -> None:
        self._matcher = matcher
        self.vocab_size = vocab_size

    @property
    def done(self) -> bool:
        """As promised by Matcher."""
        return self._matcher.is_stopped()

    @property
    def error(self) -> str:
        """Why it failed; empty if it did not."""
        error = self._matcher.get_error()
        return NO_TEXT if _NOWHERE_TO_GO in error else error

    def mask(self, row: Tensor) -> None:
        """As promised by Matcher."""
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            row.zero_()
        else:
            # It may come with a word too many.
            row.copy_(torch.frombuffer(bytearray(bits), dtype=torch.int32)[: len(row)])

    def advance(self, tokens: Sequence[int]) -> int:
        """As promised by Matcher."""
        return self._matcher.try_consume_tokens(list(tokens))

    def rollback(self, count: int) -> None:
        """As promised by Matcher."""
        if count:
            self._matcher.rollback(count)

    def copy(self) -> "GuidedMatcher":
        """Another one at the same place."""
        return GuidedMatcher(self._matcher.deep_copy(), self.vocab_size)


class GuidedVocabulary:
    """The tokens of a model as llguidance sees them; made once, for a large vocabulary takes about a second."""

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_ids: frozenset[int]) -> None:
        from llguidance import LLTokenizer

        self._vocab_size = vocab_size
        self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=sorted(eos_ids) or None)

    def matcher(self, grammar: str) -> GuidedMatcher:
        """At the beginning of a grammar in llguidance's own form; look at `error`."""
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(max_lexer_states=STATES_MAX, verbose_errors=False)
        matcher = GuidedMatcher(
            LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits), self._vocab_size
        )
        # The first mask finds what allows nothing at all, and leaves its work behind for all copies.
        matcher.mask(torch.zeros(mask_words(self._vocab_size), dtype=torch.int32))
        return matcher
