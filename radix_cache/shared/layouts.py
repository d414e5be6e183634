"""What gateways of older versions have left in Redis, under keys that nobody reads any more.

An index has no expiry. While a gateway of an older version lives, one of them keeps their index and says so by a
key that expires; when there is none, all of that layout goes.
"""

from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import REGISTRY, Keys, NamespaceId


async def drop_older_layouts(redis: ScriptCaller, keys: Keys) -> None:
    """Raises RedisDown."""
    for layout in range(1, keys.layout):
        old = Keys(prefix=keys.prefix, shards=keys.shards, layout=layout)
        if await redis.ask("EXISTS", old.workers) and not await redis.ask("EXISTS", old.keeper):
            await _drop(redis, old)


async def _drop(redis: ScriptCaller, old: Keys) -> None:
    """The workers last: as long as they are there it is done once more."""
    for shard in range(old.shards):
        for namespace in await redis.ask("HKEYS", old.names(shard)):
            await redis.ask("UNLINK", old.tree(NamespaceId(namespace)))
        for key in (old.log(shard), old.predictions(shard), old.names(shard), old.meta(shard)):
            await redis.ask("UNLINK", key)
    for key in (*old.feed_leases, old.log(REGISTRY), old.meta(REGISTRY), old.workers):
        await redis.ask("UNLINK", key)
