"""Sends the library calls of many requests as one call that takes a vector of calls.

    reserve(..)  settle(..)  hold(..)   -->   FCALL batch  [reserve, .., settle, .., hold, ..]   -->   3 answers

A server spends more time on a call than on the few commands inside it, and a client spends even more. Urgent calls
are sent at the end of the event loop's iteration, together with all calls that wait; other calls wait for at most
DELAY_SECONDS. In a cluster, calls are batched per slot.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from radix_cache.redis.call import CommandArgument, RedisCall, RedisDown, Script
from radix_cache.redis.library import BoundLibraries, LibraryFunction

DELAY_SECONDS = 0.005
"""How long a call that is not urgent waits for others."""

BATCH_CALLS_MAX = 64
"""The most calls in one batch; the server does nothing else while it runs a batch."""

FULL_SECONDS = 1.0
"""How long after an out-of-memory refusal calls that free memory are sent separately."""

FULL_ERROR = "OOM"
"""The text in the errors of a server that has reached its `maxmemory`."""


class PendingCall:
    """One call of a library function that has not been sent yet."""

    __slots__ = ("answer", "arguments", "function", "keys")

    def __init__(
        self,
        function: LibraryFunction,
        keys: Sequence[str],
        arguments: Sequence[CommandArgument],
        answer: "asyncio.Future[Any]",
    ) -> None:
        self.function = function
        self.keys = keys
        self.arguments = arguments
        self.answer = answer


class BatchedCall(RedisCall):
    """Several calls that are sent as one call of the function `batch`."""

    __slots__ = ("_on_full", "members")

    def __init__(
        self,
        batch: Script,
        members: Sequence[PendingCall],
        on_full: "Callable[[Sequence[PendingCall], object], None] | None",
    ) -> None:
        """Pack the members; `on_full` takes them over if the server refuses the call for lack of memory."""
        keys: list[CommandArgument] = []
        vector: list[CommandArgument] = []
        for member in members:
            keys += member.keys
            vector += (member.function.name, len(member.keys), len(member.arguments))
            vector += member.arguments
        command: list[CommandArgument] = [batch.run, batch.name, len(keys)]
        command += keys
        command += vector
        super().__init__(hiredis.pack_command(tuple(command)), keys, batch, members[0].answer)  # type: ignore[arg-type]
        self.members = members
        self._on_full = on_full

    def succeed(self, reply: Any) -> None:
        """Give each member its answer; a failed member does not fail the others."""
        for member, answer in zip(self.members, reply, strict=True):
            future = member.answer
            if future.done():
                continue
            if isinstance(answer, hiredis.ReplyError):
                _fail(future, answer)
            else:
                future.set_result(answer)

    def fail(self, why: object) -> None:
        """Let the answers of all members raise RedisDown."""
        if self._on_full is not None and FULL_ERROR in str(why):
            self._on_full(self.members, why)
            return
        for member in self.members:
            if not member.answer.done():
                _fail(member.answer, why)


class CallBatcher:
    """Collects calls of library functions, and sends them together."""

    def __init__(self, send: Callable[[RedisCall], None], tag_of: Callable[[str], str] | None) -> None:
        """`tag_of` returns the hash tag of a key; calls with equal tags form a batch. None: all calls may."""
        self.libraries = BoundLibraries()
        self._send = send
        self._tag_of = tag_of
        self._pending: list[PendingCall] = []
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._full_until = 0.0

    def __len__(self) -> int:
        """Return how many calls have not been sent yet."""
        return len(self._pending)

    def add(
        self,
        function: LibraryFunction,
        keys: Sequence[str],
        arguments: Sequence[CommandArgument],
        *,
        urgent: bool,
    ) -> "asyncio.Future[Any]":
        """Add a call; if urgent, it is sent at the end of the loop's iteration, else within DELAY_SECONDS."""
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._pending.append(PendingCall(function, keys, arguments, answer))
        if self._soon is None:
            if urgent or len(self._pending) >= BATCH_CALLS_MAX:
                self._soon = loop.call_soon(self.flush)
            elif self._later is None:
                self._later = loop.call_later(DELAY_SECONDS, self.flush)
        return answer

    def flush(self) -> None:
        """Send all calls that wait."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._later is not None:
            self._later.cancel()
            self._later = None
        pending, self._pending = self._pending, []
        for call in pending:
            self.libraries.bind(call.function.library)
        if self._tag_of is None:
            self._send_together(pending)
            return
        by_slot: dict[str, list[PendingCall]] = {}
        for call in pending:
            by_slot.setdefault(self._tag_of(call.keys[0]), []).append(call)
        for members in by_slot.values():
            self._send_together(members)

    def _send_together(self, members: Sequence[PendingCall]) -> None:
        """Send calls in their order, in as few batches as possible."""
        full = asyncio.get_running_loop().time() < self._full_until
        start = 0
        while start < len(members):
            frees, end = members[start].function.when_full, start + 1
            while end < len(members) and end - start < BATCH_CALLS_MAX:
                if members[end].function.when_full is not frees:
                    if full:
                        break
                    frees = False
                end += 1
            self._send_one(members[start:end], frees=frees)
            start = end

    def _send_one(self, members: Sequence[PendingCall], *, frees: bool) -> None:
        """Send these calls as one batch. `frees`: all of them free memory."""
        merged = self.libraries.merged()
        if frees:
            self._send(BatchedCall(merged.batch_when_full, members, None))
        else:
            self._send(BatchedCall(merged.batch, members, self._retry_when_full))

    def _retry_when_full(self, members: Sequence[PendingCall], why: object) -> None:
        """Send the calls that free memory once more, and fail the others."""
        freeing = []
        for call in members:
            if call.function.when_full:
                freeing.append(call)
            elif not call.answer.done():
                _fail(call.answer, why)
        if freeing:
            self._full_until = asyncio.get_running_loop().time() + FULL_SECONDS
            self._send_one(freeing, frees=True)


def hash_tag(key: str) -> str:
    """Return the part of a key that decides its cluster slot.

    See https://valkey.io/topics/cluster-spec, "Hash tags".
    """
    start = key.find("{")
    end = key.find("}", start + 1) if start >= 0 else -1
    return key[start + 1 : end] if end > start + 1 else key


def _fail(future: "asyncio.Future[Any]", why: object) -> None:
    future.set_exception(RedisDown(str(why)))
    # Retrieved here: a cancelled caller never retrieves it, and asyncio would log that.
    future.exception()
