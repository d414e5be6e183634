"""Compiles grammars for an event loop: one at a time, on a thread of its own, and only so many may wait."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from workers.engine.errors import QueueFull
from workers.engine.grammar.compiler import GrammarCompiler
from workers.engine.grammar.grammar import Grammar
from workers.engine.grammar.matcher import Matcher

WAITING_MAX = 64


class CompileQueue:
    """One compiler and its thread."""

    def __init__(self, compiler: GrammarCompiler, waiting_max: int = WAITING_MAX) -> None:
        self._compiler = compiler
        self._waiting_max = waiting_max
        self._waiting = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")

    @property
    def compiled(self) -> int:
        """Grammars compiled since the start, those that were refused included."""
        return self._compiler.compiled

    @property
    def seconds(self) -> float:
        """Time spent on them."""
        return self._compiler.seconds

    async def matcher(self, grammar: Grammar) -> Matcher:
        """A new matcher, at once if the grammar is known. RequestRefused: it is bad. QueueFull: not now."""
        if matcher := self._compiler.cached(grammar):
            return matcher
        if self._waiting >= self._waiting_max:
            raise QueueFull(f"{self._waiting} grammars wait to be compiled, which is the maximum")
        self._waiting += 1
        compiling = self._thread.submit(self._compiler.compile, grammar)
        try:
            return await asyncio.wrap_future(compiling)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Forget who waits, and end the compiler."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._compiler.close()
