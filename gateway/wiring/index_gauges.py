"""Gauges of the prefix index, and of the KV events of workers that it is made of."""

from collections.abc import Callable
from heapq import nlargest
from operator import itemgetter

from gateway.dispatch.dispatch import Dispatch
from gateway.fleet.fleet import Fleet
from gateway.kv_index.kv_event_feeds import KvEventFeeds
from gateway.kv_index.rank_event_feed import RankEventFeed
from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.telemetry.metric_families import CounterFamily, GaugeFamily, ValueFamily
from gateway.wiring.gauge_kinds import Reading, single_counter, single_gauge, worker_gauge
from radix_cache.shared.feed_lease_store import FeedState

GROUPS_MAX = 1000


def index_gauges(
    fleet: Fleet, dispatch: Dispatch, index: SharedIndexParts, event_feeds: KvEventFeeds
) -> tuple[ValueFamily, ...]:
    """Return the gauges of a gateway's copy of the prefix index, and of the events that it receives."""
    return (
        *_event_gauges(fleet, event_feeds),
        *_content_gauges(dispatch, index),
        *_replica_gauges(index),
    )


def _event_gauges(fleet: Fleet, event_feeds: KvEventFeeds) -> tuple[ValueFamily, ...]:
    """Return the gauges of the KV events of each worker."""

    def of_feeds(read: Callable[[RankEventFeed], float]) -> Callable[[], list[Reading]]:
        return lambda: [
            ((w.id,), sum(map(read, event_feeds.rank_feeds(w.id))))
            for w in fleet
            if event_feeds.rank_feeds(w.id)
        ]

    def feed_gauge(name: str, text: str, read: Callable[[RankEventFeed], float]) -> GaugeFamily:
        return GaugeFamily(name=name, text=text, labels=("worker",), read=of_feeds(read))

    def feed_counter(name: str, text: str, read: Callable[[RankEventFeed], float]) -> CounterFamily:
        return CounterFamily(name=name, text=text, labels=("worker",), read=of_feeds(read))

    return (
        feed_counter(
            "radixgate_worker_events_total",
            "Batches of KV events received from the worker.",
            lambda f: f.batches,
        ),
        feed_gauge(
            "radixgate_worker_events_lag_seconds",
            "Age in seconds of the worker's last batch of KV events on arrival.",
            lambda f: f.lag_seconds,
        ),
        feed_counter(
            "radixgate_worker_events_gaps_total",
            "Gaps in the worker's KV events for which a replay was requested.",
            lambda f: f.subscriber.gaps,
        ),
        worker_gauge(
            fleet,
            "radixgate_worker_events_uncertain",
            "Completeness of the worker's KV events: 1 if some were missed or preceded the subscription, else 0.",
            lambda w: bool(event_feeds.feed_state(w.id) & FeedState.UNCERTAIN),
        ),
        worker_gauge(
            fleet,
            "radixgate_worker_events_role",
            "Role of this gateway for the worker's KV events: 2 as their writer, 1 as the next writer, "
            "which follows, 0 if neither.",
            lambda w: event_feeds.role(w.id),
        ),
        worker_gauge(
            fleet,
            "radixgate_worker_credit_ratio",
            "Share of the worker's indexed blocks that routing counts on; below 1 after contradicting reports.",
            lambda w: event_feeds.match_confidence.of(w.id),
        ),
        feed_counter(
            "radixgate_worker_events_lost_total",
            "Gaps in the worker's KV events that no replay could fill.",
            lambda f: f.losses,
        ),
        feed_gauge(
            "radixgate_worker_pages", "KV pages that the worker reports to hold.", lambda f: len(f.follower)
        ),
    )


def _content_gauges(dispatch: Dispatch, index: SharedIndexParts) -> tuple[ValueFamily, ...]:
    """Return the gauges of what the index contains, and what it takes."""

    def group_blocks() -> list[Reading]:
        largest = nlargest(GROUPS_MAX, dispatch.index_quota.blocks_by_group().items(), key=itemgetter(1))
        return [((group,), float(blocks)) for group, blocks in largest]

    return (
        single_gauge(
            "radixgate_index_blocks", "Blocks in the prefix index.", lambda: index.index.replica.blocks
        ),
        single_gauge(
            "radixgate_index_memory_bytes",
            "Approximate bytes of memory that this process's copy of the prefix index takes; 0 where it reads "
            "that of the machine's first process.",
            lambda: index.memory_bytes,
        ),
        GaugeFamily(
            name="radixgate_index_group_blocks",
            text="Blocks in the prefix index by isolation group, for the thousand largest groups.",
            labels=("group",),
            read=group_blocks,
        ),
        single_counter(
            "radixgate_index_unrecorded_total",
            "Prompts not recorded in the prefix index because their tenant had reached `cache_blocks_max`.",
            lambda: dispatch.index_quota.unrecorded_paths,
        ),
        single_gauge(
            "radixgate_index_nodes", "Nodes of the prefix index.", lambda: len(index.index.replica.nodes)
        ),
        single_gauge(
            "radixgate_index_predictions",
            "Predictions in the prefix index of what workers are about to cache, of all gateways.",
            lambda: index.index.replica.predictions,
        ),
    )


def _replica_gauges(index: SharedIndexParts) -> tuple[ValueFamily, ...]:
    """Return the gauges of how this gateway's copy of the index follows the one in Redis."""
    return (
        single_gauge(
            "radixgate_index_up",
            "Copy of the prefix index: 1 if it follows Redis, 0 if it does not.",
            lambda: index.reader.up,
        ),
        single_gauge(
            "radixgate_index_keeper",
            "Maintenance of the prefix index: 1 if this gateway keeps it within its bounds, else 0.",
            lambda: index.maintenance.is_leader,
        ),
        single_counter(
            "radixgate_index_gaps_total",
            "Gaps in the changes of the prefix index, whose shard was read again.",
            lambda: index.reader.gaps,
        ),
        single_counter(
            "radixgate_index_snapshots_total",
            "Shards of the prefix index that were read completely.",
            lambda: index.reader.snapshots,
        ),
        single_counter(
            "radixgate_index_corrections_total",
            "Corrections of the prefix index after a worker reported fewer cached tokens than indexed.",
            lambda: index.index.corrections,
        ),
        single_counter(
            "radixgate_index_refused_total",
            "Changes of the prefix index that Redis refused.",
            lambda: index.index.refused,
        ),
    )
