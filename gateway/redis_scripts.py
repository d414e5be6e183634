"""Calls Lua scripts on Redis, many callers to one round trip.

Callers await futures. What is called in the same turn of the event loop, or while all connections are busy, goes
out in one pipeline: a lone request pays no delay, a hundred concurrent ones pay a few trips together.

A caller that stops waiting (timeout, client gone) does not stop the command: it has been sent. Scripts are
therefore written to be repeated and to be undone by id.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

BATCH_MAX = 64
BATCHES_IN_FLIGHT_MAX = 4
CALLS_WAITING_MAX = 10_000
SOCKET_SECONDS_MAX = 2.0

Answer = list[int] | int


class RedisDown(Exception):
    """Redis did not answer, or answered with an error."""


def connect(url: str) -> "redis.Redis":
    """A client for redis://, rediss:// or unix:// with bounded waits and connections.

    One immediate retry: a connection that died in the pool costs no request, and scripts may be repeated.
    """
    client: redis.Redis = redis.from_url(
        url,
        socket_timeout=SOCKET_SECONDS_MAX,
        socket_connect_timeout=SOCKET_SECONDS_MAX,
        retry=Retry(NoBackoff(), 1),
        max_connections=BATCHES_IN_FLIGHT_MAX * 4,
    )
    return client


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
    def read(cls, package: str, name: str) -> "Script":
        """The script `name`.lua of a package, as installed."""
        return cls.of((files(package) / "lua" / f"{name}.lua").read_text(encoding="utf-8"))


@dataclass(slots=True)
class _Call:
    script: Script
    keys: Sequence[str]
    arguments: Sequence[str | int | float]
    answer: "asyncio.Future[Answer]"


class ScriptCaller:
    """Owns the connections to one Redis. `close` fails what still waits."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client
        self._waiting: list[_Call] = []
        self._batches: set[asyncio.Task[None]] = set()
        self._wakeup_scheduled = False

    def call(
        self, script: Script, keys: Sequence[str], arguments: Sequence[str | int | float]
    ) -> "asyncio.Future[Answer]":
        """The script's answer, or RedisDown."""
        loop = asyncio.get_running_loop()
        call = _Call(script, keys, arguments, loop.create_future())
        if len(self._waiting) >= CALLS_WAITING_MAX:
            call.answer.set_exception(RedisDown("too many calls wait for Redis"))
            return call.answer
        self._waiting.append(call)
        if not self._wakeup_scheduled:
            self._wakeup_scheduled = True
            loop.call_soon(self._dispatch)
        return call.answer

    async def ping(self) -> None:
        """Raises RedisDown unless Redis answers."""
        try:
            await self._client.ping()
        except (RedisError, OSError) as err:
            raise RedisDown(str(err)) from err

    async def close(self) -> None:
        for call in self._waiting:
            _fail(call, RedisDown("closed"))
        self._waiting.clear()
        await asyncio.gather(*self._batches, return_exceptions=True)
        await self._client.aclose()

    def _dispatch(self) -> None:
        self._wakeup_scheduled = False
        while self._waiting and len(self._batches) < BATCHES_IN_FLIGHT_MAX:
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            task = asyncio.create_task(self._send(batch))
            self._batches.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._batches.discard(task)
        self._dispatch()

    async def _send(self, batch: list[_Call]) -> None:
        """One pipeline. Scripts that Redis does not know (it restarted) are loaded, and only those repeated."""
        try:
            answers = await self._execute(batch)
            unknown = [call for call, a in zip(batch, answers, strict=True) if isinstance(a, NoScriptError)]
            if unknown:
                for text in {call.script.text for call in unknown}:
                    await self._client.script_load(text)
                repeated = iter(await self._execute(unknown))
                answers = [next(repeated) if isinstance(a, NoScriptError) else a for a in answers]
        except (RedisError, OSError) as err:
            answers = [err] * len(batch)
        except asyncio.CancelledError:
            for call in batch:
                _fail(call, RedisDown("closed"))
            raise
        for call, answer in zip(batch, answers, strict=True):
            if isinstance(answer, BaseException):
                _fail(call, RedisDown(f"{type(answer).__name__}: {answer}"))
            elif not call.answer.done():
                call.answer.set_result(answer)

    async def _execute(self, batch: Sequence[_Call]) -> list[Answer | BaseException]:
        pipeline = self._client.pipeline(transaction=False)
        for call in batch:
            pipeline.execute_command("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.arguments)
        return await pipeline.execute(raise_on_error=False)


def _fail(call: _Call, error: RedisDown) -> None:
    if not call.answer.done():
        call.answer.set_exception(error)
        # A caller that has left does not fetch it; that is no news.
        call.answer.exception()
