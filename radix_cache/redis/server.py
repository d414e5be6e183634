"""One Redis, and a connection to it that is made when it is needed. Calls are made in the order in which they come.

A call whose connection broke is made once more, as is one whose script the server did not know.
"""

import asyncio
from collections import deque

import hiredis

from radix_cache.redis.call import UNKNOWN_SCRIPT_ERRORS, RedisCall, Script
from radix_cache.redis.connection import RedisAddress, RedisConnection, ConnectionLost, Reply

LOADED = "already exists"
"""What a server says that has been given a library by somebody else."""


class RedisServer:
    """`send` until `close`, which fails what still waits."""

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        self._line: RedisConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: deque[RedisCall] = deque()
        self._loaded: dict[str, int] = {}
        self._loads = 0
        self._refusals: dict[str, str] = {}
        self._under_way = 0
        self._closed = False

    @property
    def calls(self) -> int:
        """How many wait, or are under way."""
        return len(self._waiting) + self._under_way

    def has_room(self, _: RedisCall, most: int) -> bool:
        return len(self._waiting) + self._under_way < most

    async def primaries(self) -> list[RedisAddress]:
        """Itself."""
        return [self.address]

    @property
    def connected(self) -> bool:
        return self._line is not None

    def send(self, call: RedisCall) -> None:
        line = self._line
        if line is None:
            self._waiting.append(call)
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._connect())
            return
        self._under_way += 1
        script = call.script
        if script is not None:
            if script.text not in self._loaded:
                self._load(line, script)
            call.load = self._loaded[script.text]
        if call.asking:
            line.ask(["ASKING"], _heard)
        line.ask(call.command, lambda reply: self._answered(call, reply))

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._line is not None:
            self._line.close()
        self._give_up("closed")

    def forget(self, call: RedisCall) -> None:
        """The server turns out not to know the call's script. Of many such calls the first one has it loaded."""
        if call.script is not None and self._loaded.get(call.script.text) == call.load:
            del self._loaded[call.script.text]

    def why(self, call: RedisCall, error: str) -> str:
        """What was wrong with the call; if its script did not load, also why not."""
        refusal = self._refusals.get(call.script.text) if call.script is not None else None
        return f"{error} ({refusal})" if refusal is not None and error.startswith(UNKNOWN_SCRIPT_ERRORS) else error

    def _load(self, line: RedisConnection, script: Script) -> None:
        self._loads += 1
        self._loaded[script.text] = self._loads

        def heard(reply: Reply | ConnectionLost) -> None:
            self._refusals.pop(script.text, None)
            if isinstance(reply, hiredis.ReplyError) and LOADED not in str(reply):
                self._refusals[script.text] = str(reply)

        line.ask([*script.load, script.text], heard)

    def _answered(self, call: RedisCall, reply: Reply | ConnectionLost) -> None:
        self._under_way -= 1
        if isinstance(reply, ConnectionLost):
            if call.repeated or self._closed:
                call.fail(reply)
            else:
                call.repeated = True
                self.send(call)
        elif isinstance(reply, hiredis.ReplyError):
            if call.script is not None and not call.repeated and str(reply).startswith(UNKNOWN_SCRIPT_ERRORS):
                call.repeated = True
                self.forget(call)
                self.send(call)
            else:
                call.fail(self.why(call, str(reply)))
        else:
            call.succeed(reply)

    def _unreachable(self, call: RedisCall, why: str) -> None:
        call.fail(why)

    async def _connect(self) -> None:
        try:
            line = await self.address.open(self._lost)
        except ConnectionLost as err:
            self._connecting = None
            self._give_up(str(err))
            return
        self._line, self._connecting = line, None
        self._loaded.clear()
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            self.send(call)

    def _lost(self, line: RedisConnection) -> None:
        if self._line is line:
            self._line = None

    def _give_up(self, why: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            self._unreachable(call, why)


def _heard(_: object) -> None:
    """It shows in the call that follows."""
