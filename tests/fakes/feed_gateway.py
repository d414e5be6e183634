"""The part of a gateway that follows the KV events of one worker, as a process that a test can kill.

python -m tests.fakes.feed_gateway REDIS_URL PREFIX ENDPOINT REPLAY

It prints `writes` once it holds the feed lease and writes the worker's events into the shared index.
"""

import asyncio
import sys

from gateway.fleet.ranks import Ranks
from gateway.kv_index.kv_event_feeds import KvEventFeeds
from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.settings.stores import IndexSettings
from radix_cache.blocks import BlockHasher
from radix_cache.namespace import HashedNamespace, Namespace
from workers.kv_events.source import EventSource

SPACE = HashedNamespace(Namespace(model="m", block_size=2), BlockHasher(block_size=2, salt=b"s"))


async def main(redis_url: str, prefix: str, endpoint: str, replay: str) -> None:
    """Follow the events published at `endpoint`, with the replay socket at `replay` (empty: there is none)."""
    parts = SharedIndexParts.create(redis_url, prefix, IndexSettings())
    feeds = KvEventFeeds(
        index=parts.index,
        store=parts.feed_leases,
        resolve_namespace=lambda *_: SPACE,
        page_budget=parts.page_budget,
        ranks=Ranks(),
        replica_is_current=lambda: parts.reader.up,
    )
    loops = [asyncio.create_task(parts.reader.follow()), asyncio.create_task(feeds.run())]
    await parts.wait_until_loaded()
    parts.index.enrol("w", "")
    feeds.follow("w", (EventSource(endpoint=endpoint, replay=replay or None),))
    while not (feeds.role("w") == 2 and "w" in parts.index.followed):
        await asyncio.sleep(0.01)
    print("writes", flush=True)
    await asyncio.gather(*loops)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
