"""The state of the KV event feed of one data-parallel rank, and the interface of observers of ranks.

worker_event_feeds.py runs the feeds, and writes their events to the index.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from radix_cache.blocks import Hashes
from radix_cache.follower import CacheFollower
from radix_cache.match import WorkerId
from workers.kv_events.subscriber import KvEventSubscriber


@dataclass(slots=True)
class RankEventFeed:
    """The feed of one data-parallel rank of a worker."""

    subscriber: KvEventSubscriber
    follower: CacheFollower
    rank: int = 0
    task: "asyncio.Task[None] | None" = None
    caught_up: bool = False
    """Whether the replay of earlier events is done."""
    complete_from_start: bool = False
    """Whether every event since the engine started, or since its cache was last empty, was received."""
    batches: int = 0
    losses: int = 0
    """How often events were lost for good, or may be, since following them failed."""
    lag_seconds: float = 0.0
    """The delay of the last batch from the engine to this gateway."""

    @property
    def uncertain(self) -> bool:
        """Whether events arrive, but some of what the worker holds may be missing in them."""
        return self.batches > 0 and not self.trusted

    @property
    def trusted(self) -> bool:
        """Whether the events that arrived cover everything that the worker holds."""
        return self.complete_from_start and self.follower.covers_all


class RankObserver(Protocol):
    """An observer that is notified of the KV blocks that each data-parallel rank stores and evicts."""

    def stored(self, worker: WorkerId, rank: int, hashes: Hashes, ranks: int) -> None:
        """Note that the rank, one of `ranks`, holds this path."""
        ...

    def removed(self, worker: WorkerId, rank: int, hashes: Hashes) -> None:
        """Note that the rank no longer holds these blocks."""
        ...

    def cleared(self, worker: WorkerId, rank: int) -> None:
        """Note that the rank holds nothing."""
        ...
