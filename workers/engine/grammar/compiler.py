"""Compiles grammars into matchers of one model's tokens, within bounds, and only once for each grammar.

    grammar -> cache -> check, in a process that can be killed -> matcher -> cache
                 |                                                             |
                 +---------------- a copy for each answer ---------------------+

Compiling mostly takes a millisecond, but it may never end: call `compile` on a thread that computes nothing else.
Refusals are cached too, so a bad grammar that comes again costs nothing.
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
"""Most grammars in the cache."""
CACHED_CHARS_MAX = 1024 * 1024
"""Most characters of all cached grammars; a compiled one takes up to two hundred bytes for each character."""

COMPILE_SECONDS_MAX = 5.0
"""Longest time that compiling one grammar may take."""


class GrammarsUnavailable(RequestRefused):
    """Raised when the library that reads grammars is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "This worker has no structured output: llguidance is not installed (the extra `grammar`).",
            code="unsupported_parameter",
        )


class GrammarCompiler:
    """Compiles and caches the grammars of one model; any thread may call, and one grammar compiles at a time."""

    def __init__(
        self,
        tokenizer_json: Callable[[], str],
        vocab_size: int,
        eos_ids: frozenset[int],
        *,
        seconds_max: float = COMPILE_SECONDS_MAX,
        cached_max: int = CACHED_MAX,
    ) -> None:
        """Start with an empty cache.

        Args:
            tokenizer_json: Returns the text of the model's tokenizer.json.
            vocab_size: Tokens of the model.
            eos_ids: Tokens that end an answer.
            seconds_max: Longest time that compiling one grammar may take.
            cached_max: Most grammars in the cache.
        """
        self.seconds = 0.0
        """Time spent on compiling since the start."""
        self.compiled = 0
        """Grammars compiled since the start, refused ones included."""
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._cached_max = cached_max
        self._check_process = GrammarCheckProcess(seconds_max)
        self._vocabulary: GuidedVocabulary | None = None
        # A matcher at the beginning of the grammar, or the reason why the grammar was refused.
        self._cache: OrderedDict[Grammar, GuidedMatcher | str] = OrderedDict()
        self._cache_chars = 0
        self._cache_lock = threading.Lock()
        self._compile_lock = threading.Lock()

    def cached(self, grammar: Grammar) -> Matcher | None:
        """Return a new matcher from the cache, or None. Raises RequestRefused if the grammar is known to be bad."""
        with self._cache_lock:
            entry = self._cache.get(grammar)
            if entry is None:
                return None
            self._cache.move_to_end(grammar)
            if isinstance(entry, str):
                raise grammar.refused(entry)
            return entry.copy()

    def compile(self, grammar: Grammar) -> Matcher:
        """Return a new matcher, compiling the grammar if it is not cached.

        Raises:
            RequestRefused: The grammar cannot be used.
            GrammarsUnavailable: The library that reads grammars is not installed.
        """
        if not guidance.is_installed():
            raise GrammarsUnavailable()
        grammar.check()
        with self._compile_lock:
            # Another thread may have compiled the same grammar while this one waited for the lock.
            if matcher := self.cached(grammar):
                return matcher
            began = time.perf_counter()
            result = self._compile(grammar)
            self.seconds += time.perf_counter() - began
            self.compiled += 1
            self._add_to_cache(grammar, result)
        if isinstance(result, str):
            raise grammar.refused(result)
        return result.copy()

    def close(self) -> None:
        """End the check process; a grammar that is being compiled is refused."""
        self._check_process.close()

    def _add_to_cache(self, grammar: Grammar, result: GuidedMatcher | str) -> None:
        with self._cache_lock:
            self._cache[grammar] = result
            self._cache_chars += len(grammar.text)
            while len(self._cache) > self._cached_max or self._cache_chars > CACHED_CHARS_MAX:
                oldest, _ = self._cache.popitem(last=False)
                self._cache_chars -= len(oldest.text)

    def _compile(self, grammar: Grammar) -> GuidedMatcher | str:
        """Return a matcher at the beginning of the grammar, or the reason why it cannot be used."""
        checked = self._check_process.check(grammar)
        if "error" in checked:
            return checked["error"]
        if self._vocabulary is None:
            try:
                self._vocabulary = GuidedVocabulary(self._tokenizer_json(), self._vocab_size, self._eos_ids)
            except ValueError as err:
                return f"llguidance cannot read this model's tokenizer: {err}"
        matcher = self._vocabulary.matcher(checked["grammar"])
        return matcher.error or matcher
