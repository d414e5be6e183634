"""A pool of child processes that encode very long prompts: at most one per encoder thread, started on demand.

    loop | thread a  -- text -->  process 1        the GIL is free meanwhile, even while the tokens are received
         | thread b  -- text -->  process 2

A thread alone is not enough. A tokenizer lets the event loop run while it encodes, but converting its result to
Python objects and freeing them takes a tenth of a second for a million tokens, in which nothing else runs.

A process that dies is replaced, and the request is repeated once. Texts that ended both processes are refused, now
and for a while, because they would end the next processes too, or take the gateway's own memory. The thread encodes
in the gateway's own process only if no process can be started, or if one answers far too late (a stopped process
would hold its thread for ever). When the client of a very long prompt disconnects, the prompt's process is killed.
"""

import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO, cast

from xxhash import xxh3_128

from gateway.tokenization.encoder_child import (
    CHUNK_CHARACTERS,
    EncodeRequest,
    PipeClosed,
    read_answer,
    write_request,
)
from gateway.tokenization.piecewise_encoder import TOKENS_MAX, EncodingFailed, TooManyTokens
from radix_cache.blocks import Tokens

log = logging.getLogger(__name__)

TRIES_MAX = 2
_SEED = secrets.randbits(64)

KILL_CHARACTERS_MIN = 1_000_000
"""For longer prompts an abandoned job's process is killed, since finishing takes longer than a new start."""

START_SECONDS_MAX = 20.0
SECONDS_PER_CHARACTER_MAX = 4e-6
"""How long a process may take per character; encoding usually takes a tenth to a quarter of that."""


FAILED_TEXTS_MAX = 1024
"""The most texts that are kept, as hashes, because they could not be encoded."""
FAILED_SECONDS = 600.0


class EncoderUnavailable(Exception):
    """No encoder process can answer."""


class EncodingJob:
    """Texts to encode in a process, run from a thread; `abandon` may be called at any time, from any thread."""

    def __init__(self, pool: "EncoderProcesses", request: EncodeRequest, texts: Sequence[str]) -> None:
        self._pool = pool
        self._request = request
        self._texts = texts
        self._lock = threading.Lock()
        self._process: _EncoderProcess | None = None
        self._abandoned = False

    @property
    def is_wanted(self) -> bool:
        """Whether the result is still needed."""
        return not (self._abandoned or self._pool.closed)

    def tokens(self) -> list[Tokens]:
        """Return the tokens of each text. Raises EncoderUnavailable, EncodingFailed, TooManyTokens."""
        if self._pool.has_failed(self._texts):
            raise EncodingFailed("it failed before")
        for _ in range(TRIES_MAX):
            process, answered = self._attach(), False
            try:
                found = process.encode(self._request, self._texts)
                answered = True
            except (EncodingFailed, TooManyTokens) as err:
                answered = True
                self._pool.give_back(process)
                if isinstance(err, EncodingFailed):
                    self._pool.remember_failed(self._texts)
                raise
            except (PipeClosed, OSError):
                if process.is_late:
                    log.warning("a process that encodes long prompts did not answer in time, and was killed")
                    raise EncoderUnavailable from None
                if not self.is_wanted:
                    raise EncoderUnavailable from None
                log.warning("a process that encodes long prompts has died")
                continue
            finally:
                self._detach()
                if not answered:
                    process.end()  # The process may be in the middle of an answer.
            self._pool.give_back(process)
            if found is None:
                raise EncoderUnavailable
            return found
        self._pool.remember_failed(self._texts)
        raise EncodingFailed("it ended the processes that encoded it")

    def abandon(self) -> None:
        """Give up the result, and kill the process if the text is very long."""
        with self._lock:
            self._abandoned = True
            if self._process is not None and sum(map(len, self._texts)) > KILL_CHARACTERS_MIN:
                self._process.kill()  # The waiting thread notices that the pipe is closed.

    def _attach(self) -> "_EncoderProcess":
        if self._abandoned:
            raise EncoderUnavailable
        process = self._pool.take()
        with self._lock:
            if not self._abandoned:
                self._process = process
                return process
        self._pool.give_back(process)
        raise EncoderUnavailable

    def _detach(self) -> None:
        with self._lock:
            self._process = None


class EncoderProcesses:
    """The encoder processes of one gateway: as many as there are threads that encode at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: set[_EncoderProcess] = set()
        self._idle: list[_EncoderProcess] = []
        self._failed: OrderedDict[bytes, float] = OrderedDict()
        self.closed = False

    def job(
        self,
        directory: str,
        digest: str,
        texts: Sequence[str],
        *,
        special: bool,
        tokens_max: int = TOKENS_MAX,
        together: bool = False,
    ) -> EncodingJob:
        """Return the job of encoding these texts with the tokenizer of that directory and digest."""
        request = EncodeRequest(directory, digest, special, len(texts), tokens_max, together)
        return EncodingJob(self, request, texts)

    def has_failed(self, texts: Sequence[str]) -> bool:
        """Return whether encoding these texts failed recently."""
        if not self._failed:
            return False
        failed_at = self._failed.get(_hash(texts))
        return failed_at is not None and time.monotonic() - failed_at < FAILED_SECONDS

    def remember_failed(self, texts: Sequence[str]) -> None:
        """Record for a while that these texts cannot be encoded."""
        with self._lock:
            self._failed[_hash(texts)] = time.monotonic()
            if len(self._failed) > FAILED_TEXTS_MAX:
                self._failed.popitem(last=False)

    def take(self) -> "_EncoderProcess":
        """Return an idle process, or a new one. Raises EncoderUnavailable."""
        with self._lock:
            if self.closed:
                raise EncoderUnavailable
            self._all = {process for process in self._all if process.is_alive}
            self._idle = [process for process in self._idle if process.is_alive]
            if self._idle:
                return self._idle.pop()
            try:
                process = _EncoderProcess()
            except OSError as err:
                log.warning("cannot start a process that encodes long prompts: %s", err.strerror or err)
                raise EncoderUnavailable from err
            self._all.add(process)
            return process

    def give_back(self, process: "_EncoderProcess") -> None:
        """Return a process to the pool after its answer was read."""
        with self._lock:
            self._idle.append(process)

    def pids(self) -> set[int]:
        """Return the ids of the running processes."""
        with self._lock:
            return {process.pid for process in self._all if process.is_alive}

    def close(self) -> None:
        """Kill all processes, including busy ones."""
        with self._lock:
            self.closed = True
            for process in self._all:
                process.kill()
            for process in self._all:
                process.end()
            self._idle.clear()


def _hash(texts: Sequence[str]) -> bytes:
    digest = xxh3_128(seed=_SEED)
    for text in texts:
        for at in range(0, len(text), CHUNK_CHARACTERS):
            digest.update(text[at : at + CHUNK_CHARACTERS].encode("utf-8", "surrogatepass"))
        digest.update(b"\xff")  # A separator, which occurs in no UTF-8 text.
    return digest.digest()


class _EncoderProcess:
    """One running encoder process. The constructor raises OSError if it cannot be started."""

    def __init__(self) -> None:
        # Without -P Python would search for modules in the current directory first.
        command = (sys.executable, "-P", "-m", "gateway.tokenization.encoder_child", str(os.getpid()))
        places = os.pathsep.join(place or os.getcwd() for place in sys.path)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # The rest of the environment is left out, since it may contain secrets.
            env={"PYTHONPATH": places},
        )
        self.pid = self._process.pid
        self.is_late = False

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def encode(self, request: EncodeRequest, texts: Sequence[str]) -> list[Tokens] | None:
        """Encode the texts; None if the process has another tokenizer.

        Raises EncodingFailed, TooManyTokens, PipeClosed and OSError, the latter two also if the process was too
        late.
        """
        seconds_max = START_SECONDS_MAX + sum(map(len, texts)) * SECONDS_PER_CHARACTER_MAX
        timer = threading.Timer(seconds_max, self._kill_late)
        timer.start()
        try:
            write_request(cast(BinaryIO, self._process.stdin), request, texts)
            return read_answer(cast(BinaryIO, self._process.stdout))
        finally:
            timer.cancel()

    def _kill_late(self) -> None:
        self.is_late = True
        self.kill()

    def kill(self) -> None:
        """Kill the process without waiting for it."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process, wait until it has ended, and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # Closing flushes to a dead reader and fails; left to the garbage collector, Python 3.13 reports that.
            with suppress(OSError):
                cast(BinaryIO, pipe).close()
