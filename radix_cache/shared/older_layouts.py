"""Removes indexes of older layouts from Redis once no gateway uses them any more.

The keys of an index do not expire. While gateways of an older version run, one of them maintains their index and
renews a lease key; when that key has expired, all keys of that layout are removed.
"""

from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import REGISTRY, SHARDS, Keys, TreeId

OLDER_SHARDS = 64
"""The number of shards in layouts 1 and 2."""


async def drop_older_layouts(redis: ScriptCaller, keys: Keys) -> None:
    """Remove the indexes of older layouts that no gateway maintains any more. Raises RedisDown."""
    for layout in range(1, keys.layout):
        shards = OLDER_SHARDS if keys.shards == SHARDS else keys.shards
        old = Keys(prefix=keys.prefix, shards=shards, layout=layout)
        if await redis.ask("EXISTS", old.workers) and not await redis.ask("EXISTS", old.maintenance_lease):
            await _remove(redis, old)


async def _remove(redis: ScriptCaller, old: Keys) -> None:
    """Remove all keys of a layout; the workers' key goes last, so that an interrupted removal is repeated."""
    for shard in range(old.shards):
        for namespace in await redis.ask("HKEYS", old.names(shard)):
            await redis.ask("UNLINK", old.tree(TreeId(namespace)))
        for key in (old.log(shard), old.predictions(shard), old.names(shard), old.meta(shard)):
            await redis.ask("UNLINK", key)
    for key in (*old.feed_leases, old.log(REGISTRY), old.meta(REGISTRY), old.workers):
        await redis.ask("UNLINK", key)
