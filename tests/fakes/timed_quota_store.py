"""RedisQuotaStore on the clock of a test: the same Lua on a real server, which reads the time from a key."""

import redis

from gateway.quotas.events import LimitEvents
from gateway.quotas.redis_store import FILES, RedisQuotaStore
from radix_cache.redis.call import read_lua
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.clock import FakeClock

TIME = "test-time-us"
ITS_OWN = """  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
"""
THE_TESTS = f"  return tonumber(redis.call('GET', '{TIME}'))\n"
FORGETTING = "redis.call('PEXPIRE', key, left)"


class TimedQuotaStore(RedisQuotaStore):
    """A quota store whose time is that of `clock` (seconds since 1970). Windows never expire on the server."""

    def __init__(
        self,
        scripts: ScriptCaller,
        client: "redis.Redis",
        clock: FakeClock,
        events: LimitEvents | None = None,
    ) -> None:
        super().__init__(scripts, 10.0, clock, events=events)
        text = read_lua("gateway.quotas", *FILES)
        assert ITS_OWN in text
        assert FORGETTING in text
        body = text.replace(ITS_OWN, THE_TESTS).replace(FORGETTING, "local _ = left")
        self._use_library(body)
        self._client = client
        self._its_clock = clock
        self.tell_time()

    def tell_time(self) -> None:
        """As the clock has it now."""
        self._client.set(TIME, str(round(self._its_clock.now * 1e6)))
