"""Calls Lua scripts on Redis, many callers to one round trip, in the order in which they call.

Callers await futures. A caller that stops waiting (timeout, client gone) does not stop the command: it has been
sent. Scripts are therefore written to be repeated and to be undone by id; a call whose connection broke is made
once more.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import hiredis

from radix_cache.shared.line import Address, Line, LineLost, Reply

CALLS_WAITING_MAX = 10_000

Answer = list[int] | int
Argument = str | bytes | int | float


class RedisDown(Exception):
    """Redis did not answer, or answered with an error."""


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua file and the name Redis knows it by."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> "Script":
        """A script from its text; Redis names scripts by SHA-1."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    @classmethod
    def read(cls, package: str, *names: str) -> "Script":
        """The script `name`.lua of a package, as installed; of several names one script, in that order."""
        folder = files(package) / "lua"
        return cls.of("\n".join((folder / f"{name}.lua").read_text(encoding="utf-8") for name in names))


@dataclass(slots=True, eq=False)
class _Call:
    command: Sequence[Argument]
    script: Script | None
    answer: "asyncio.Future[Any]"
    repeated: bool = False


class ScriptCaller:
    """Owns one connection to one Redis, made when it is needed. `close` fails what still waits."""

    def __init__(self, url: str) -> None:
        self._address = Address(url)
        self._line: Line | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: deque[_Call] = deque()
        self._loaded: set[str] = set()
        self._under_way = 0
        self._closed = False

    @property
    def busy(self) -> bool:
        """Calls wait, or are under way."""
        return bool(self._waiting or self._under_way)

    def call(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]
    ) -> "asyncio.Future[Answer]":
        """The script's answer, or RedisDown."""
        return self._make(["EVALSHA", script.sha, len(keys), *keys, *arguments], script)

    def ask(self, *command: Argument) -> "asyncio.Future[Any]":
        """The reply to a plain command that may be repeated: bytes, int, None, a list of these; or RedisDown."""
        return self._make(command, None)

    def _make(self, command: Sequence[Argument], script: Script | None) -> "asyncio.Future[Any]":
        call = _Call(command, script, asyncio.get_running_loop().create_future())
        if self._closed:
            _fail(call, RedisDown("closed"))
        elif len(self._waiting) + self._under_way >= CALLS_WAITING_MAX:
            _fail(call, RedisDown("too many calls wait for Redis"))
        else:
            self._send(call)
        return call.answer

    async def ping(self) -> None:
        """Raises RedisDown unless Redis answers."""
        await self.ask("PING")

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._line is not None:
            self._line.close()
        self._fail_waiting(RedisDown("closed"))

    def _send(self, call: _Call) -> None:
        line = self._line
        if line is None:
            self._waiting.append(call)
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._connect())
            return
        self._under_way += 1
        script = call.script
        if script is not None and script.sha not in self._loaded:
            self._loaded.add(script.sha)
            line.ask(["SCRIPT", "LOAD", script.text], _heard)
        line.ask(call.command, lambda reply: self._answered(call, reply))

    def _answered(self, call: _Call, reply: Reply | LineLost) -> None:
        self._under_way -= 1
        if isinstance(reply, LineLost):
            if call.repeated or self._closed:
                _fail(call, RedisDown(str(reply)))
            else:
                call.repeated = True
                self._send(call)
        elif isinstance(reply, hiredis.ReplyError):
            if call.script is not None and not call.repeated and str(reply).startswith("NOSCRIPT"):
                call.repeated = True
                self._loaded.discard(call.script.sha)
                self._send(call)
            else:
                _fail(call, RedisDown(str(reply)))
        elif not call.answer.done():
            call.answer.set_result(reply)

    async def _connect(self) -> None:
        try:
            line = await self._address.open(self._lost)
        except LineLost as err:
            self._connecting = None
            self._fail_waiting(RedisDown(str(err)))
            return
        self._line, self._connecting = line, None
        self._loaded.clear()
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            self._send(call)

    def _lost(self, line: Line) -> None:
        if self._line is line:
            self._line = None

    def _fail_waiting(self, error: RedisDown) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            _fail(call, error)


def _heard(_: object) -> None:
    """A script that did not load shows when it is called."""


def _fail(call: _Call, error: RedisDown) -> None:
    if not call.answer.done():
        call.answer.set_exception(error)
        # A caller that has left does not fetch it; that is no news.
        call.answer.exception()
