"""Sends the calls of many requests to functions of one library as one call, which takes them as a vector.

    reserve(..)  settle(..)  settle(..)   -->   FCALL batch  [reserve, .., settle, .., settle, ..]   -->   3 answers

A server spends more on each call than on the few commands inside it, and a client more still. Urgent calls leave at
the end of the event loop's turn, and take along all calls that wait; other calls wait for at most DELAY_SECONDS.
In a cluster the calls of each slot leave together.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from radix_cache.redis.call import CommandArgument, RedisCall, RedisDown, Script

DELAY_SECONDS = 0.005
"""How long a call that is not urgent waits for others."""

BATCH_CALLS_MAX = 64
"""Calls that leave as one: a server does nothing else meanwhile."""


class PendingCall:
    """One call of a library function that has not left yet."""

    __slots__ = ("answer", "arguments", "keys", "script")

    def __init__(
        self,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[CommandArgument],
        answer: "asyncio.Future[Any]",
    ) -> None:
        self.script = script
        self.keys = keys
        self.arguments = arguments
        self.answer = answer


class BatchedCall(RedisCall):
    """Calls that leave as one call of their library's batch function."""

    __slots__ = ("members",)

    def __init__(self, batch: Script, members: Sequence[PendingCall]) -> None:
        keys: list[CommandArgument] = []
        vector: list[CommandArgument] = []
        for member in members:
            keys += member.keys
            vector += (member.script.verb, len(member.keys), len(member.arguments))
            vector += member.arguments
        command: list[CommandArgument] = [batch.run, batch.name, len(keys)]
        command += keys
        command += vector
        super().__init__(command, keys, batch, members[0].answer)
        self.members = members

    def succeed(self, reply: Any) -> None:
        """Give each member its answer; one that failed does not fail the others."""
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
        for member in self.members:
            if not member.answer.done():
                _fail(member.answer, why)


class CallBatcher:
    """Collects calls of library functions, and sends them together."""

    def __init__(self, send: Callable[[RedisCall], None], tag_of: Callable[[str], str] | None) -> None:
        """`tag_of` returns what calls have in common that may leave together, by a key; None: all may."""
        self._send = send
        self._tag_of = tag_of
        self._pending: list[PendingCall] = []
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many calls have not left yet."""
        return len(self._pending)

    def add(
        self, script: Script, keys: Sequence[str], arguments: Sequence[CommandArgument], *, urgent: bool
    ) -> "asyncio.Future[Any]":
        """Add a call; it leaves at the end of this turn of the event loop, or a moment later if it is not urgent."""
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._pending.append(PendingCall(script, keys, arguments, answer))
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
        for members in self._groups(pending):
            self._send_together(members)

    def _groups(self, pending: list[PendingCall]) -> list[list[PendingCall]]:
        """Return the calls that may leave together: of one library, and in a cluster of one slot."""
        groups: dict[tuple[str, str], list[PendingCall]] = {}
        for call in pending:
            tag = self._tag_of(call.keys[0]) if self._tag_of is not None else ""
            groups.setdefault((call.script.text, tag), []).append(call)
        return list(groups.values())

    def _send_together(self, members: list[PendingCall]) -> None:
        """Send calls in their order, as few calls as possible.

        Functions that also run on a server without memory leave apart from the others, which it would refuse.
        """
        start = 0
        while start < len(members):
            batch, end = members[start].script.batch, start + 1
            while end < len(members) and end - start < BATCH_CALLS_MAX and members[end].script.batch is batch:
                end += 1
            part = members[start:end]
            if len(part) == 1 or batch is None:
                for one in part:
                    command = [one.script.run, one.script.name, len(one.keys), *one.keys, *one.arguments]
                    self._send(RedisCall(command, one.keys, one.script, one.answer))
            else:
                self._send(BatchedCall(batch, part))
            start = end


def hash_tag(key: str) -> str:
    """Return the part of a key that decides its cluster slot.

    See https://valkey.io/topics/cluster-spec, "Hash tags".
    """
    start = key.find("{")
    end = key.find("}", start + 1) if start >= 0 else -1
    return key[start + 1 : end] if end > start + 1 else key


def _fail(future: "asyncio.Future[Any]", why: object) -> None:
    future.set_exception(RedisDown(str(why)))
    # Fetched here, because a caller that has left never fetches it and asyncio would log that.
    future.exception()
