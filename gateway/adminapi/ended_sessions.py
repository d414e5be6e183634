"""OperatorSessions that were logged out of, known to all gateways until they would have ended anyway.

    {rg:sessions}:ended:<session id>     expires when the session would have

While Redis is away each gateway knows its own alone: that is when operators need their page.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from gateway.concurrency.bounded_wait import bounded_wait
from radix_cache.redis.call import RedisDown
from radix_cache.redis.scripts import ScriptCaller

log = logging.getLogger(__name__)

KNOWN_MAX = 10_000
ANSWER_SECONDS_MAX = 0.5


class EndedSessions:
    """`wall`: Unix time in seconds."""

    def __init__(self, redis: ScriptCaller, prefix: str, wall: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._tag = f"{{{prefix}:sessions}}:ended"
        self._wall = wall
        self._known: OrderedDict[str, None] = OrderedDict()

    async def add(self, identity: str, ends: float) -> bool:
        """`ends`: Unix time from which it would be good for nothing. False: no other gateway knows of it."""
        self._know(identity)
        left_ms = round((ends - self._wall()) * 1000)
        if left_ms <= 0:
            return True
        try:
            await bounded_wait(
                self._redis.ask("SET", f"{self._tag}:{identity}", "1", "PX", left_ms), ANSWER_SECONDS_MAX
            )
        except (RedisDown, TimeoutError) as err:
            log.warning(
                "a session has ended in this gateway alone: %s", str(err) or "Redis does not answer in time"
            )
            return False
        return True

    async def has(self, identity: str) -> bool:
        """Was it logged out of, as far as is known?"""
        if identity in self._known:
            return True
        try:
            asked = self._redis.ask("EXISTS", f"{self._tag}:{identity}")
            if not await bounded_wait(asked, ANSWER_SECONDS_MAX):
                return False
        except (RedisDown, TimeoutError):
            return False
        self._know(identity)
        return True

    def _know(self, identity: str) -> None:
        self._known[identity] = None
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
