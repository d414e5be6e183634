"""Compiles grammars for an event loop: one at a time, on a thread of its own, with a bounded queue."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from workers.engine.errors import QueueFull
from workers.engine.grammar.compiler import GrammarCompiler
from workers.engine.grammar.grammar import Grammar
from workers.engine.grammar.matcher import Matcher

WAITING_MAX = 64
"""Most grammars that may wait to be compiled."""


class CompileQueue:
    """A grammar compiler with its thread and its queue."""

    def __init__(self, compiler: GrammarCompiler, waiting_max: int = WAITING_MAX) -> None:
        self._compiler = compiler
        self._waiting_max = waiting_max
        self._waiting = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")

    @property
    def compiled(self) -> int:
        """Grammars compiled since the start, refused ones included."""
        return self._compiler.compiled

    @property
    def seconds(self) -> float:
        """Time spent on compiling since the start."""
        return self._compiler.seconds

    async def matcher(self, grammar: Grammar) -> Matcher:
        """Return a new matcher, at once if the grammar is cached.

        Raises:
            RequestRefused: The grammar cannot be used.
            QueueFull: Too many grammars wait to be compiled.
        """
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
        """Drop the waiting grammars, and end the compiler."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._compiler.close()
