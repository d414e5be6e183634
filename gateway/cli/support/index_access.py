"""Access of commands to the prefix index: the Redis that the settings name, and a local copy to read."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.cli.support.command_error import CommandError
from gateway.process.embedded_valkey import ValkeyFailed, running_valkey_url
from gateway.settings.tree import Settings
from gateway.tenants.isolation_group import isolation_group
from radix_cache.namespace import Namespace
from radix_cache.redis.call import RedisDown
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import Keys
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.replica_reader import ReplicaReader
from radix_cache.shared.tree_dump import TreeDumper
from radix_cache.shared.tree_store import TreeStore

COPY_SECONDS_MAX = 120.0
UNREADABLE = "the index cannot be read: it is damaged, or of another version; see `radixgate index verify`"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAccess:
    """An open connection to the Redis that holds the prefix index."""

    url: str
    keys: Keys
    redis: ScriptCaller
    store: TreeStore
    """Changes the index."""

    reading: TreeDumper
    """Reads the index."""


@asynccontextmanager
async def open_index(settings: Settings) -> AsyncIterator[IndexAccess]:
    """Connect to Redis for as long as the context is open.

    Raises:
        CommandError: Redis does not answer, when the context is entered or while it is open.
    """
    url = _url(settings)
    keys = Keys.of_redis(url, settings.redis.prefix)
    redis = ScriptCaller(url)
    try:
        await redis.ping()
        yield IndexAccess(
            url=url, keys=keys, redis=redis, store=TreeStore(redis, keys), reading=TreeDumper(redis, keys)
        )
    except RedisDown as err:
        raise CommandError(f"Redis (redis.url): {err}") from err
    finally:
        await redis.close()


async def copy_index(access: IndexAccess, settings: Settings) -> TreeReplica:
    """Return a copy of the whole index as it is now. Raises CommandError if it cannot be read."""
    copy = TreeReplica(time.monotonic, settings.index.predicted_seconds)
    reader = ReplicaReader(access.redis, access.keys, copy)
    following = asyncio.create_task(reader.follow())
    ready = asyncio.create_task(reader.ready.wait())
    try:
        await asyncio.wait((following, ready), timeout=COPY_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            raise CommandError(UNREADABLE) from following.exception()
        if not reader.up:
            raise CommandError("the index cannot be read: Redis does not answer, or not in time")
        return copy
    finally:
        for task in (following, ready):
            task.cancel()
        await asyncio.gather(following, ready, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceSelection:
    """A choice of namespaces of the index, by model and by isolation group."""

    model: str | None = None
    """None: any model."""

    group: str | None = None
    """Full name of an isolation group, as `tenant:NAME` or `group:NAME`; None: any group."""

    @classmethod
    def from_options(cls, settings: Settings, model: str | None, tenant: str | None) -> "NamespaceSelection":
        """Return the choice that the options --model and --tenant describe.

        A tenant of the settings stands for its isolation group. Any other text with a colon is the full name of a
        group (`group:NAME`), the empty text is the shared group, and any other text is `tenant:NAME`.
        """
        if tenant is None:
            return cls(model=model)
        for known in settings.tenants:
            if known.id == tenant:
                return cls(model=model, group=isolation_group(known.id, known.isolation))
        return cls(model=model, group=tenant if ":" in tenant or not tenant else f"tenant:{tenant}")

    @property
    def everything(self) -> bool:
        """Whether all namespaces are chosen."""
        return self.model is None and self.group is None

    def includes(self, space: Namespace) -> bool:
        """Return whether this namespace is chosen."""
        return self.model in (None, space.model) and self.group in (None, space.group)


def _url(settings: Settings) -> str:
    if settings.redis.url != "embedded":
        return settings.redis.url
    try:
        return running_valkey_url(Path(settings.state_directory))
    except ValkeyFailed as err:
        raise CommandError(str(err)) from err
