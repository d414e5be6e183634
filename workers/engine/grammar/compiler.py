"""From a grammar to a matcher of one model's tokens, within bounds, and only once for each grammar.

    grammar -> cache -> trial, in a process that can be killed -> matcher -> cache
                 |                                                             |
                 +---------------- a copy for each answer ---------------------+

Compiling takes a millisecond mostly, and may take for ever: call `compile` on a thread that computes nothing else.
Refusals are remembered too, so a bad grammar that comes again costs nothing.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from workers.engine.errors import RequestRefused
from workers.engine.grammar import guidance
from workers.engine.grammar.check_process import GrammarCheckProcess
from workers.engine.grammar.grammar import Grammar
from workers.engine.grammar.guidance import GuidedMatcher, GuidedVocabulary
from workers.engine.grammar.matcher import Matcher

CACHED_MAX = 128
CACHED_CHARS_MAX = 1024 * 1024
"""Of all grammars that are kept: a compiled one takes up to two hundred bytes for each character of its text."""

COMPILE_SECONDS_MAX = 5.0


class GrammarsUnavailable(RequestRefused):
    """The library that reads grammars is not installed here."""

    def __init__(self) -> None:
        super().__init__(
            "This worker has no structured output: llguidance is not installed (the extra `grammar`).",
            code="unsupported_parameter",
        )


class GrammarCompiler:
    """The grammars of one model. Any thread may call it; compiling is done one after another."""

    def __init__(
        self,
        tokenizer_json: Callable[[], str],
        vocab_size: int,
        eos_ids: frozenset[int],
        *,
        seconds_max: float = COMPILE_SECONDS_MAX,
        cached_max: int = CACHED_MAX,
    ) -> None:
        self.seconds = 0.0
        """Spent on compiling since the start."""
        self.compiled = 0
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._cached_max = cached_max
        self._trial = GrammarCheckProcess(seconds_max)
        self._vocabulary: GuidedVocabulary | None = None
        self._known: OrderedDict[Grammar, GuidedMatcher | str] = OrderedDict()
        self._known_chars = 0
        self._known_lock = threading.Lock()
        self._compile_lock = threading.Lock()

    def cached(self, grammar: Grammar) -> Matcher | None:
        """A new matcher if the grammar is known, at once; RequestRefused if it is known to be bad."""
        with self._known_lock:
            known = self._known.get(grammar)
            if known is None:
                return None
            self._known.move_to_end(grammar)
            if isinstance(known, str):
                raise grammar.refused(known)
            return known.copy()

    def compile(self, grammar: Grammar) -> Matcher:
        """A new matcher. RequestRefused says why not; GrammarsUnavailable if nothing can be compiled here."""
        if not guidance.is_installed():
            raise GrammarsUnavailable()
        grammar.check()
        with self._compile_lock:
            # Somebody else may have brought the same one while this one waited.
            if matcher := self.cached(grammar):
                return matcher
            began = time.perf_counter()
            made = self._compile(grammar)
            self.seconds += time.perf_counter() - began
            self.compiled += 1
            self._keep(grammar, made)
        if isinstance(made, str):
            raise grammar.refused(made)
        return made.copy()

    def close(self) -> None:
        """End the process; who is compiling gets a refusal."""
        self._trial.close()

    def _keep(self, grammar: Grammar, made: GuidedMatcher | str) -> None:
        with self._known_lock:
            self._known[grammar] = made
            self._known_chars += len(grammar.text)
            while len(self._known) > self._cached_max or self._known_chars > CACHED_CHARS_MAX:
                oldest, _ = self._known.popitem(last=False)
                self._known_chars -= len(oldest.text)

    def _compile(self, grammar: Grammar) -> GuidedMatcher | str:
        """The matcher at the beginning, or why there is none."""
        tried = self._trial.ask(grammar)
        if "error" in tried:
            return tried["error"]
        if self._vocabulary is None:
            try:
                self._vocabulary = GuidedVocabulary(self._tokenizer_json(), self._vocab_size, self._eos_ids)
            except ValueError as err:
                return f"llguidance cannot read this model's tokenizer: {err}"
        matcher = self._vocabulary.matcher(tried["grammar"])
        return matcher.error or matcher
