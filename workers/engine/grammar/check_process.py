"""The process that reads grammars first (`trial`): asked by one thread at a time, killed when it takes too long."""

import json
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

from workers.engine.grammar.grammar import JSON_WHITESPACE, Grammar

_TRIAL = Path(__file__).with_name("grammar_check.py")


class GrammarCheckProcess:
    """Started when it is needed, and again after it was killed."""

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        # `_asking` is held while the process is used, and `_starting` only for moments, so that `close` can kill.
        self._asking = threading.Lock()
        self._starting = threading.Lock()

    def ask(self, grammar: Grammar) -> dict[str, str]:
        """What the process answers; an "error" of our own when it does not in time, or dies of it."""
        with self._asking:
            with self._starting:
                if self._closed:
                    return {"error": "the worker is shutting down"}
                process = self._process = self._process or _start()
            answer, in_time = self._exchange(process, grammar)
            if answer:
                return dict(json.loads(answer))
            self._kill()
        if in_time:
            return {"error": "it is too complex"}
        return {"error": f"it takes longer than {self._seconds_max:g} seconds to compile"}

    def close(self) -> None:
        """Kill it, and start no other; whoever is asking gets an error."""
        with self._starting:
            self._closed = True
            if self._process:
                self._process.kill()
        with self._asking:
            self._kill()

    def _exchange(self, process: subprocess.Popen[bytes], grammar: Grammar) -> tuple[bytes, bool]:
        """The answer's line, empty if there is none; and whether the process had the time for one."""
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the process was started with pipes")
        question = {"kind": grammar.kind, "text": grammar.text, "whitespace": JSON_WHITESPACE}
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return b"", True
        with DefaultSelector() as selector:
            selector.register(process.stdout, EVENT_READ)
            if not selector.select(self._seconds_max):
                return b"", False
        return process.stdout.readline(), True

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            # What was not written goes nowhere.
            with suppress(OSError):
                if pipe:
                    pipe.close()


def _start() -> subprocess.Popen[bytes]:
    # Without -P the files beside this one could be taken for modules of other names.
    return subprocess.Popen(
        [sys.executable, "-P", str(_TRIAL)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
