"""Every key of the shared queue. A shard has one hash tag: turns and loads of its models are decided together.

    {queue}:...         the messages between gateways; on a single server also the queues of all models
    {queue:N.K}:...     shard N of a cluster: the queues of some groups of models, with their workers' loads

K makes the slots of a cluster's shards lie at equal distances, so that each primary has as many shards as another.
Deployments in one cluster have their shard N at different places, by their prefixes.
"""

from binascii import crc32
from collections.abc import Sequence
from functools import lru_cache
from itertools import count

from radix_cache.redis.topology import SLOTS, slot_of

SHARED = ("gateways", "loads", "places", "owned", "grants", "ended", "turns")
OF_A_QUEUE = ("meta", "active", "finish", "tickets")

MESSAGES = "queue"
"""The hash tag of the messages between gateways."""

DEFAULT_PREFIX = "rg"
"""Of the setting `redis.prefix`: there shard 0 has the first slots."""

CLUSTER_SHARDS = 24
"""The shards of the queue in a Redis Cluster: as many for each of 2, 3, 4, 6, 8 or 12 primaries."""

BATCH = "#batch"
"""The end of the names of queues of batch work; lua/call.lua has the same one."""


def queue_of(model: str, *, background: bool) -> str:
    """Return the name of a model's queue; `background`: of its batch work."""
    return model + BATCH if background else model


def model_of(queue: str) -> str:
    """Return the model of a queue."""
    return queue.removesuffix(BATCH)


class QueueKeys:
    """The names of the shared queue's keys."""

    def __init__(self, prefix: str, tag: str = MESSAGES) -> None:
        """`prefix`: the beginning of all keys of the deployment. `tag`: the hash tag of a shard."""
        self._tag = f"{prefix}:{{{tag}}}"
        self._shared = [f"{self._tag}:{name}" for name in SHARED]
        self._queues: dict[str, list[str]] = {}

    @property
    def turns(self) -> str:
        """The stream of turns, and of messages between gateways."""
        return f"{self._tag}:turns"

    @property
    def visits(self) -> str:
        """The key of the lease of the gateway that keeps the shards in step."""
        return f"{self._tag}:visits"

    def report(self, look: str, gateway: str) -> str:
        """Return the key of a gateway's report for one look of another gateway."""
        return f"{self._tag}:report:{look}:{gateway}"

    def preemption(self, name: str) -> str:
        """Return the key that names the gateway which meets a need for room."""
        return f"{self._tag}:favour:{name}"

    def of(self, queues: Sequence[str]) -> list[str]:
        """Return all keys that a function touches that concerns these queues."""
        keys = list(self._shared)
        for queue in queues:
            if queue not in self._queues:
                self._queues[queue] = [f"{self._tag}:{name}:{queue}" for name in OF_A_QUEUE]
            keys += self._queues[queue]
        return keys


@lru_cache
def shard_tags(shards: int, prefix: str = DEFAULT_PREFIX) -> tuple[str, ...]:
    """Return the hash tags of so many shards, whose slots lie at equal distances; one of them is MESSAGES."""
    first = crc32(prefix.encode()) - crc32(DEFAULT_PREFIX.encode())
    return tuple(_tag_within(shard, (first + shard) % shards, shards) for shard in range(shards))


def _tag_within(shard: int, part: int, shards: int) -> str:
    """Return a hash tag of a shard with a slot in this part of all slots."""
    slots = range(SLOTS * part // shards, SLOTS * (part + 1) // shards)
    if slot_of(MESSAGES) in slots:
        return MESSAGES
    return next(
        tag for tag in (f"{MESSAGES}:{shard}.{number}" for number in count()) if slot_of(tag) in slots
    )
