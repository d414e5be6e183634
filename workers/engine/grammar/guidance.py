"""Matchers by llguidance, an optional library, which is imported only when it is needed."""

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from workers.engine.grammar.matcher import mask_words

if TYPE_CHECKING:
    from llguidance import LLMatcher

STATES_MAX = 50_000
"""Most lexer states of one answer, about 2 kB each; an answer with more is aborted."""


def is_installed() -> bool:
    """Return whether llguidance is installed."""
    return importlib.util.find_spec("llguidance") is not None


NO_TEXT = "no text matches it"
_NO_CONTINUATION = "NoExtensionBias"
"""llguidance's error at a position that no token can follow and where the grammar may not end."""


class GuidedMatcher:
    """A Matcher over an LLMatcher, which never raises an error but keeps it as its state."""

    def __init__(self, matcher: "LLMatcher", vocab_size: int) -> None:
        self._matcher = matcher
        self.vocab_size = vocab_size

    @property
    def done(self) -> bool:
        """Whether no token can follow any more."""
        return self._matcher.is_stopped()

    @property
    def error(self) -> str:
        """Why the matcher failed; empty if it did not."""
        error = self._matcher.get_error()
        return NO_TEXT if _NO_CONTINUATION in error else error

    def mask(self, row: Tensor) -> None:
        """Set the bits of the tokens that may follow."""
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            row.zero_()
        else:
            # llguidance may return one word more than the row has.
            row.copy_(torch.frombuffer(bytearray(bits), dtype=torch.int32)[: len(row)])

    def advance(self, tokens: Sequence[int]) -> int:
        """Consume tokens, and return how many of them were allowed."""
        return self._matcher.try_consume_tokens(list(tokens))

    def rollback(self, count: int) -> None:
        """Undo the last `count` tokens."""
        if count:
            self._matcher.rollback(count)

    def copy(self) -> "GuidedMatcher":
        """Return another matcher at the same position."""
        return GuidedMatcher(self._matcher.deep_copy(), self.vocab_size)


class GuidedVocabulary:
    """The tokens of a model for llguidance; created once, because a large vocabulary takes about a second."""

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_ids: frozenset[int]) -> None:
        from llguidance import LLTokenizer

        self._vocab_size = vocab_size
        self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=sorted(eos_ids) or None)

    def matcher(self, grammar: str) -> GuidedMatcher:
        """Return a matcher at the beginning of a grammar in llguidance's form; its `error` is set if it failed."""
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(max_lexer_states=STATES_MAX, verbose_errors=False)
        matcher = GuidedMatcher(
            LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits), self._vocab_size
        )
        # The first mask detects a grammar that allows no text, and its work is reused by all copies.
        matcher.mask(torch.zeros(mask_words(self._vocab_size), dtype=torch.int32))
        return matcher
