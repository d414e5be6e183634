"""A command's way into the prefix index: to the Redis of the settings, and to a read copy of its own."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.cli.support.failure import Failure
from gateway.process.embedded_valkey import ValkeyFailed, running_url
from gateway.settings.tree import Settings
from gateway.tenants.register import isolation_group
from radix_cache.namespace import Namespace
from radix_cache.redis.call import RedisDown
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import Keys
from radix_cache.shared.reader import Reader
from radix_cache.shared.replica import TreeCopy
from radix_cache.shared.store import TreeStore
from radix_cache.shared.tree_dump import TreeReading

WHOLE_SECONDS_MAX = 120.0
UNREADABLE = "the index cannot be read: it is damaged, or of another version; see `radixgate index verify`"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAccess:
    """Redis answers. `reading` looks, `store` changes."""

    url: str
    keys: Keys
    redis: ScriptCaller
    store: TreeStore
    reading: TreeReading


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[IndexAccess]:
    """Raises Failure, now and while it is open, when Redis does not answer."""
    url, keys = _url(settings), Keys(prefix=settings.redis.prefix)
    redis = ScriptCaller(url)
    try:
        await redis.ping()
        yield IndexAccess(
            url=url, keys=keys, redis=redis, store=TreeStore(redis, keys), reading=TreeReading(redis, keys)
        )
    except RedisDown as err:
        raise Failure(f"Redis (redis.url): {err}") from err
    finally:
        await redis.close()


async def copied(access: IndexAccess, settings: Settings) -> TreeCopy:
    """The whole tree, as it is now. Raises Failure."""
    copy = TreeCopy(time.monotonic, settings.index.predicted_seconds)
    reader = Reader(access.redis, access.keys, copy)
    following = asyncio.create_task(reader.follow())
    ready = asyncio.create_task(reader.ready.wait())
    try:
        await asyncio.wait((following, ready), timeout=WHOLE_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            raise Failure(UNREADABLE) from following.exception()
        if not reader.up:
            raise Failure("the index cannot be read: Redis does not answer, or not in time")
        return copy
    finally:
        for task in (following, ready):
            task.cancel()
        await asyncio.gather(following, ready, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A choice of namespaces: None is any."""

    model: str | None = None
    group: str | None = None

    @classmethod
    def of(cls, settings: Settings, model: str | None, tenant: str | None) -> "Wanted":
        """`tenant`: of the settings, by its group; else a group's full name (group:NAME); else tenant:NAME."""
        if tenant is None:
            return cls(model=model)
        for known in settings.tenants:
            if known.id == tenant:
                return cls(model=model, group=isolation_group(known.id, known.isolation))
        return cls(model=model, group=tenant if ":" in tenant or not tenant else f"tenant:{tenant}")

    @property
    def everything(self) -> bool:
        return self.model is None and self.group is None

    def takes(self, space: Namespace) -> bool:
        return self.model in (None, space.model) and self.group in (None, space.group)


def _url(settings: Settings) -> str:
    if settings.redis.url != "embedded":
        return settings.redis.url
    try:
        return running_url(Path(settings.state_directory))
    except ValkeyFailed as err:
        raise Failure(str(err)) from err
