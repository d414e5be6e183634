"""Sessions that operators have logged out of, kept for all gateways until the sessions would have ended anyway.

    {rg:sessions}:ended:<session id>     expires when the session would have

While Redis does not answer, each gateway has only its own logouts and accepts all other sessions, since operators
need the dashboard especially then.
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
"""The most ended sessions that a gateway keeps in its own memory."""
ANSWER_SECONDS_MAX = 0.5
"""Longest wait for Redis."""


class EndedSessions:
    """The ended sessions, in Redis and in memory. `wall` is Unix time in seconds."""

    def __init__(self, redis: ScriptCaller, prefix: str, wall: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._tag = f"{{{prefix}:sessions}}:ended"
        self._wall = wall
        self._known: OrderedDict[str, None] = OrderedDict()

    async def add(self, identity: str, ends: float) -> bool:
        """Record that a session has ended; return False if the other gateways could not be notified.

        `ends` is the Unix time at which the session would have ended anyway.
        """
        self._remember(identity)
        left_ms = round((ends - self._wall()) * 1000)
        if left_ms <= 0:
            return True
        try:
            await bounded_wait(
                self._redis.ask("SET", f"{self._tag}:{identity}", "1", "PX", left_ms), ANSWER_SECONDS_MAX
            )
        except (RedisDown, TimeoutError) as err:
            log.warning(
                "a logout is known to this gateway only: %s", str(err) or "Redis does not answer in time"
            )
            return False
        return True

    async def has(self, identity: str) -> bool:
        """Return whether a session has ended; while Redis does not answer, only this gateway's logouts count."""
        if identity in self._known:
            return True
        try:
            exists = self._redis.ask("EXISTS", f"{self._tag}:{identity}")
            if not await bounded_wait(exists, ANSWER_SECONDS_MAX):
                return False
        except (RedisDown, TimeoutError):
            return False
        self._remember(identity)
        return True

    def _remember(self, identity: str) -> None:
        self._known[identity] = None
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
