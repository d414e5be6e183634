"""Runs the process that checks grammars before they are compiled (`grammar_check`), and kills a slow one."""

import json
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

from workers.engine.grammar.grammar import JSON_WHITESPACE, Grammar

_PROGRAM = Path(__file__).with_name("grammar_check.py")


class GrammarCheckProcess:
    """The process that checks grammars; it is started at the first check, and again after it was killed."""

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        # `_in_use` is held while the process works, and `_starting` only for moments, so that `close` can kill.
        self._in_use = threading.Lock()
        self._starting = threading.Lock()

    def check(self, grammar: Grammar) -> dict[str, str]:
        """Return the answer of `grammar_check`; an "error" where the process is too slow or dies."""
        with self._in_use:
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
        """Kill the process and start no other; a check in progress returns an error."""
        with self._starting:
            self._closed = True
            if self._process:
                self._process.kill()
        with self._in_use:
            self._kill()

    def _exchange(self, process: subprocess.Popen[bytes], grammar: Grammar) -> tuple[bytes, bool]:
        """Return the answer's line, empty if there is none, and whether the process had the time for one."""
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the process was started with pipes")
        request = {"kind": grammar.kind, "text": grammar.text, "whitespace": JSON_WHITESPACE}
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
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
            # Closing may try to write what is left to a process that is gone.
            with suppress(OSError):
                if pipe:
                    pipe.close()


def _start() -> subprocess.Popen[bytes]:
    # Without -P the files next to the script could be imported in place of other modules.
    return subprocess.Popen(
        [sys.executable, "-P", str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
