"""Construction of the queue that all gateways share: in one place, or in shards where Redis is a cluster."""

import os
import time
from collections.abc import Awaitable, Callable, Iterator

from gateway.dispatch.dispatch import Dispatch
from gateway.dispatch.placement import Placement
from gateway.fleet.fleet import Fleet
from gateway.queueing.dispatch_windows import DispatchWindows
from gateway.queueing.queue_peer import QueuePeer, ShardPeer
from gateway.queueing.shared.keys import CLUSTER_SHARDS, MESSAGES, QueueKeys, model_of, shard_tags
from gateway.queueing.shared.local_placements import OwnLoads
from gateway.queueing.shared.queue_shards import QueueShards
from gateway.queueing.shared.queue_store import QueueStore
from gateway.queueing.shared.shard_layout import ShardLayout
from gateway.queueing.shared.shards_in_step import ShardsInStep, ShardVisits
from gateway.queueing.shared.shared_queue import SharedQueue
from gateway.queueing.shared.shared_turns import SharedTurns
from gateway.queueing.shared.turn_stream import TurnReader
from gateway.queueing.waiting_rooms import WaitingRooms
from gateway.settings.tree import Settings
from policies.queueing.sfq import Sfq
from policies.registry import tenant_order
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.redis.topology import is_cluster


def shared_queue(
    settings: Settings, scripts: ScriptCaller, windows: DispatchWindows, fleet: Fleet
) -> SharedTurns:
    """Return the queue of a gateway that has not joined the others yet."""
    tags = shard_tags(CLUSTER_SHARDS if is_cluster(settings.redis.url) else 1, settings.redis.prefix)
    gateway, queueing = os.urandom(8).hex(), settings.queueing
    layout = ShardLayout(len(tags), queueing.tenant_shards, lambda: fleet.groups)
    is_divided = layout.is_divided if layout.divides else None
    own_loads: OwnLoads | None = {} if layout.divides else None
    shards = [
        SharedQueue(
            QueueStore(
                scripts, QueueKeys(settings.redis.prefix, tag), gateway, windows, queueing.hold, is_divided
            ),
            tenant_order(queueing.within),
            enabled=queueing.across == Sfq.name,
            timeout_seconds=settings.redis.timeout_ms / 1000,
            clock=time.monotonic,
            shard=number,
            always_joined=tag == MESSAGES,
            in_cell=settings.cells is not None,
            own_loads=own_loads,
        )
        for number, tag in enumerate(tags)
    ]
    if len(shards) == 1:
        return shards[0]
    return QueueShards(shards, tags.index(MESSAGES), layout)


def attach_peers(queue: SharedTurns, fleet: Fleet, rooms: WaitingRooms[Placement]) -> None:
    """Give each shard of the queue its view of this gateway's models, workers and waiting rooms."""
    for shard in queue.shards:
        if isinstance(queue, QueueShards):
            shard.attach(ShardPeer(fleet, rooms, shard=shard.number, layout=queue.layout))
        else:
            shard.attach(QueuePeer(fleet, rooms))


def shard_loops(
    queue: SharedTurns, scripts: ScriptCaller
) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
    """Yield the loops of all shards but the first one, whose stream also has the messages between gateways."""
    for number, shard in enumerate(queue.shards[1:], 1):
        turns = TurnReader(
            scripts,
            shard.stream,
            on_turn=shard.requests.turn_granted,
            on_gateways=shard.membership.gateways_changed,
            on_missed=shard.requests.ask_again,
            handlers={},
            wanted=shard.membership.joining,
        )
        yield f"queue {number}", shard.membership.run
        yield f"turns {number}", turns.run


def shard_visits(
    scripts: ScriptCaller, prefix: str, dispatch: Dispatch
) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
    """Yield the loop that keeps shards in step, where the tenants of a model are divided among them.

    In a cell CellLoads does it.
    """
    queue, windows = dispatch.queue, dispatch.window.of_all_gateways

    def window_of(queue_name: str) -> int:
        model = model_of(queue_name)
        return windows.of(model).narrow * len(dispatch.fleet.serving(model))

    if isinstance(queue, QueueShards) and queue.layout.divides:
        shards = ShardsInStep(queue, window_of)
        yield (
            "queue shards in step",
            ShardVisits(shards, scripts, QueueKeys(prefix).visits, queue.gateway).run,
        )
