"""Processes that encode very long prompts for the threads of a gateway: one each at the most, started when needed.

    loop | thread a  -- text -->  process 1        the interpreter is free meanwhile, also when the tokens come back
         | thread b  -- text -->  process 2

A thread alone would not do: a tokenizer lets the loop run while it encodes, but what it returns has to be made
Python's own and be freed again, a tenth of a second for a million tokens, in which nothing else moves.

A process that dies is replaced, and asked once more; after that the thread encodes by itself, and so it does where
one answers far too late (it may have been stopped, and would hold its thread for ever). Where the client of a
very long prompt has left, its process is ended, and with it the work.
"""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import BinaryIO, cast

from gateway.tokenization.encoder_child import Asked, Ended, answer, ask
from radix_cache.blocks import Tokens

log = logging.getLogger(__name__)

TRIES = 2

ENDED_CHARACTERS = 1_000_000
"""Of longer prompts the process is ended when nobody waits for them: the rest takes longer than a new start."""

START_SECONDS_MAX = 20.0
SECONDS_PER_CHARACTER_MAX = 4e-6
"""Of a long answer; an encoding takes a tenth to a quarter of that."""


class NoProcess(Exception):
    """There is none that answers."""


class Work:
    """One question, asked in a thread. `abandon` may be called at any time, from anywhere."""

    def __init__(self, among: "EncoderProcesses", asked: Asked, texts: Sequence[str]) -> None:
        self._among = among
        self._asked = asked
        self._texts = texts
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._abandoned = False

    @property
    def wanted(self) -> bool:
        """Does anybody wait for it?"""
        return not (self._abandoned or self._among.closed)

    def tokens(self) -> list[Tokens]:
        """Of each text. Raises NoProcess."""
        for _ in range(TRIES):
            process, answered = self._begin(), False
            try:
                found = process.encoded(self._asked, self._texts)
                answered = True
            except (Ended, OSError):
                if process.is_late:
                    log.warning("a process that encodes long prompts does not answer, and was ended")
                    break
                if self.wanted:
                    log.warning("a process that encodes long prompts has died")
                continue
            finally:
                self._done()
                if not answered:
                    process.end()  # It may be in the middle of an answer.
            self._among.give_back(process)
            if found is None:
                break
            return found
        raise NoProcess

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._abandoned = True
            if self._process is not None and sum(map(len, self._texts)) > ENDED_CHARACTERS:
                self._process.kill()  # Who asks it sees it end.

    def _begin(self) -> "_Process":
        if self._abandoned:
            raise NoProcess
        process = self._among.take()
        with self._lock:
            if not self._abandoned:
                self._process = process
                return process
        self._among.give_back(process)
        raise NoProcess

    def _done(self) -> None:
        with self._lock:
            self._process = None


class EncoderProcesses:
    """Those of one gateway. As many as there are threads that ask at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: set[_Process] = set()
        self._idle: list[_Process] = []
        self.closed = False

    def work(self, directory: str, digest: str, texts: Sequence[str], *, special: bool) -> Work:
        """`directory`, `digest`: of the tokenizer."""
        return Work(self, Asked(directory, digest, special, len(texts)), texts)

    def take(self) -> "_Process":
        """One that is idle, or a new one. Raises NoProcess."""
        with self._lock:
            if self.closed:
                raise NoProcess
            self._all = {process for process in self._all if process.lives}
            self._idle = [process for process in self._idle if process.lives]
            if self._idle:
                return self._idle.pop()
            try:
                process = _Process()
            except OSError as err:
                log.warning("no process to encode a long prompt in: %s", err.strerror or err)
                raise NoProcess from err
            self._all.add(process)
            return process

    def give_back(self, process: "_Process") -> None:
        with self._lock:
            self._idle.append(process)

    def pids(self) -> set[int]:
        """Of those that live."""
        with self._lock:
            return {process.pid for process in self._all if process.lives}

    def close(self) -> None:
        """Ends all, also those at work."""
        with self._lock:
            self.closed = True
            for process in self._all:
                process.kill()
            for process in self._all:
                process.end()
            self._idle.clear()


class _Process:
    """Raises OSError where none can be started."""

    def __init__(self) -> None:
        # Without -P modules would be looked for where we happen to have been started, before all other places.
        command = (sys.executable, "-P", "-m", "gateway.tokenization.encoder_child", str(os.getpid()))
        places = os.pathsep.join(place or os.getcwd() for place in sys.path)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Nothing else of ours: it has no use for our secrets.
            env={"PYTHONPATH": places},
        )
        self.pid = self._process.pid
        self.is_late = False

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def encoded(self, asked: Asked, texts: Sequence[str]) -> list[Tokens] | None:
        """None where it cannot say. Raises Ended and OSError, also where it was ended for being late."""
        seconds_max = START_SECONDS_MAX + sum(map(len, texts)) * SECONDS_PER_CHARACTER_MAX
        timer = threading.Timer(seconds_max, self._end_late)
        timer.start()
        try:
            ask(cast(BinaryIO, self._process.stdin), asked, texts)
            return answer(cast(BinaryIO, self._process.stdout))
        finally:
            timer.cancel()

    def _end_late(self) -> None:
        self.is_late = True
        self.kill()

    def kill(self) -> None:
        """It ends soon."""
        self._process.kill()

    def end(self) -> None:
        """It has ended: its memory may take a moment to be given back."""
        self._process.kill()
        self._process.wait()
