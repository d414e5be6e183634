"""The number of gateways that share the limits, by which each computes its part while Redis is away.

Each gateway writes its name to Redis once a period, and reads how many there are. While Redis is away the last
number holds. A smaller number holds once no larger one was read for GONE_MS: in a Redis that has lost its data the
first gateway would find itself alone. A gateway that stops removes its name.
"""

import asyncio
import secrets
from collections import deque
from contextlib import suppress

from radix_cache.redis.call import RedisDown, Script
from radix_cache.redis.scripts import ScriptCaller

ANNOUNCE_SECONDS = 2.0
GONE_MS = 7000
"""A gateway that has not announced itself for so long does not count."""

_ANNOUNCE = Script.from_text(
    """#!lua
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])
"""
)


class GatewayCount:
    """How many gateways share the limits, by the answers of Redis."""

    def __init__(self, scripts: ScriptCaller, prefix: str = "rg") -> None:
        self.count = 1
        self._answers: deque[tuple[float, int]] = deque()
        """The numbers that Redis has answered in the last GONE_MS, each with its time."""
        self._scripts = scripts
        self._key = f"{prefix}:{{gateways}}"
        self._name = secrets.token_hex(8)

    async def announce(self) -> None:
        """Announce this gateway, and learn how many there are. Raises RedisDown."""
        answer = await self._scripts.call(_ANNOUNCE, [self._key], [self._name, GONE_MS])
        if isinstance(answer, int):
            now = asyncio.get_running_loop().time()
            self._answers.append((now, answer))
            while self._answers[0][0] < now - GONE_MS / 1000:
                self._answers.popleft()
            self.count = max(number for _, number in self._answers)

    async def run(self) -> None:
        """Announce this gateway once a period, until cancelled."""
        while True:
            with suppress(RedisDown):
                await self.announce()
            await asyncio.sleep(ANNOUNCE_SECONDS)

    def close(self) -> None:
        """Remove this gateway's name from Redis, once `run` has ended: it is not counted any more."""
        self._scripts.ask("ZREM", self._key, self._name)
