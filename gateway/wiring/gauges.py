"""Gauges of what is: workers, queues, index, quotas. Read from the parts at each scrape."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from gateway.dispatch.hedging import OUTCOMES
from gateway.dispatch.placement import Placed
from gateway.dispatch.reservations import Reservations
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.kv_index.feed import Feed
from gateway.kv_index.feeds import Feeds
from gateway.kv_index.shared_index import SharedIndexParts
from gateway.ledger.ledger import Ledger
from gateway.queueing.waiting_room import WaitingRoom
from gateway.quotas.escrow import Escrow
from gateway.quotas.failover_store import GuardedQuotaStore
from gateway.routing.shadow_policy import Shadow
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.batch_counts import BatchCounts
from gateway.telemetry.gauge_collector import Gauge
from gateway.tenants.sql_directory import SqlDirectory
from radix_cache.shared.feed_leases import Known
from workers.worker import Health

if TYPE_CHECKING:
    from gateway.tenants.issuer import Issuer

GROUPS_MAX = 1000

Reading = tuple[tuple[str, ...], float]


def gauges(
    fleet: Fleet,
    reservations: Reservations,
    index: SharedIndexParts,
    feeds: Feeds,
    quotas: GuardedQuotaStore,
    escrow: Escrow,
    database: SqlDirectory | None,
    ledger: Ledger | None,
    batches: BatchCounts,
    issuers: "Sequence[Issuer[Any]]" = (),
    access_log: AccessLog | None = None,
) -> Iterable[Gauge]:
    """Everything that is read when somebody asks."""

    def worker(name: str, text: str, read: Callable[[Worker], float], *, counter: bool = False) -> Gauge:
        def read_all() -> list[tuple[tuple[str, ...], float]]:
            return [((w.id,), read(w)) for w in fleet]

        return Gauge(name=name, text=text, labels=("worker",), read=read_all, counter=counter)

    def single(name: str, text: str, read: Callable[[], float], *, counter: bool = False) -> Gauge:
        return Gauge(name=name, text=text, read=lambda: [((), read())], counter=counter)

    def feed(name: str, text: str, read: Callable[[Feed], float], *, counter: bool = False) -> Gauge:
        def read_all() -> list[tuple[tuple[str, ...], float]]:
            return [((w.id,), sum(map(read, feeds.of(w.id)))) for w in fleet if feeds.of(w.id)]

        return Gauge(name=name, text=text, labels=("worker",), read=read_all, counter=counter)

    def health() -> list[tuple[tuple[str, ...], float]]:
        return [((w.id, state.value), float(w.health.health is state)) for w in fleet for state in Health]

    def waiting() -> list[tuple[tuple[str, ...], float]]:
        counts = Counter[tuple[str, str]]()
        for room in reservations.rooms().values():
            # Who has waited is told of with 0 afterwards.
            counts.update({(room.model, name): 0 for name in room.classes})
            counts.update((room.model, ticket.service_class) for ticket in room.waiting())
        return [(labels, float(count)) for labels, count in counts.items()]

    def queue(name: str, text: str, read: Callable[[WaitingRoom[Placed]], float]) -> Gauge:
        def read_all() -> list[tuple[tuple[str, ...], float]]:
            return [((queue,), read(room)) for queue, room in reservations.rooms().items()]

        return Gauge(name=name, text=text, labels=("queue",), read=read_all)

    def of_limits(read: Callable[[], Mapping[tuple[str, str], int]]) -> Callable[[], Iterable[Reading]]:
        return lambda: [(labels, float(count)) for labels, count in list(read().items())]

    def group_blocks() -> list[Reading]:
        largest = nlargest(GROUPS_MAX, reservations.shares.blocks().items(), key=itemgetter(1))
        return [((group,), float(blocks)) for group, blocks in largest]

    def shadow(name: str, text: str, read: Callable[[Shadow], float]) -> Gauge:
        def read_it() -> list[tuple[tuple[str, ...], float]]:
            return [((), read(second))] if (second := reservations.router.shadow) is not None else []

        return Gauge(name=name, text=text, read=read_it, counter=True)

    def of_issuers(read: "Callable[[Issuer[Any]], float]") -> Callable[[], Iterable[Reading]]:
        """One that tenants and operators share is told of once, at its worse."""

        def read_all() -> list[Reading]:
            found: dict[str, list[float]] = {}
            for issuer in issuers:
                found.setdefault(issuer.rules.issuer, []).append(read(issuer))
            return [((name,), min(readings)) for name, readings in found.items()]

        return read_all

    def database_up() -> bool:
        return database is None or not database.away

    return (
        Gauge(
            name="worker_health", text="1 for the worker's state.", labels=("worker", "state"), read=health
        ),
        worker("worker_streams", "Requests under way, from this gateway.", lambda w: w.load.streams),
        worker(
            "worker_queued_tokens",
            "Estimated uncached prompt tokens that were sent and have not brought a first token.",
            lambda w: w.load.tokens_queued,
        ),
        worker("worker_kv_tokens", "Tokens of requests under way.", lambda w: w.load.kv_tokens),
        worker(
            "worker_load_heard",
            "1: its load feed says how busy it is; 0: it is asked, or does not tell.",
            lambda w: w.load.is_heard,
        ),
        worker("worker_failures", "Requests that it did not answer.", lambda w: w.failures, counter=True),
        worker(
            "worker_circuit_open",
            "1: it gets no requests, as too many of them failed, though its probes are fine.",
            lambda w: w.health.open,
        ),
        single(
            "retries",
            "Requests that were sent to one more worker, as another had brought no first byte.",
            lambda: reservations.retries.spent,
            counter=True,
        ),
        single(
            "retries_refused",
            "Requests that were not, as too many had been of late (`requests.retries`).",
            lambda: reservations.retries.refused,
            counter=True,
        ),
        Gauge(
            name="hedges",
            text="Requests sent to a second worker for want of a first byte: it `won`, `lost`, or `failed`, or the "
            "client `left`.",
            labels=("outcome",),
            read=lambda: [((name,), float(reservations.hedging.outcomes[name])) for name in OUTCOMES],
            counter=True,
        ),
        Gauge(
            name="provider_resting",
            text="1: it is asked for nothing, since it said that it is full (429).",
            labels=("worker",),
            read=lambda: [
                ((w.id,), float(w.rests_until > fleet.now())) for w in fleet if w.provider is not None
            ],
        ),
        Gauge(
            name="provider_limited",
            text="Requests that did not go there for one of its limits.",
            labels=("worker",),
            read=lambda: [
                ((w.id,), float(reservations.allowances.refused[w.id]))
                for w in fleet
                if w.provider is not None
            ],
            counter=True,
        ),
        worker("worker_circuit_openings", "How often that happened.", lambda w: w.openings, counter=True),
        worker(
            "worker_step_seconds",
            "Learnt gap between the tokens of a stream.",
            lambda w: w.speed.step_ms / 1000,
        ),
        worker(
            "worker_prefill_seconds_per_token",
            "Learnt prefill time of an uncached token.",
            lambda w: w.speed.ms_per_token / 1000,
        ),
        shadow("shadow_compared", "Requests that the shadow policy ranked too.", lambda s: s.compared),
        shadow("shadow_differed", "Of these, where it chose another worker.", lambda s: s.differed),
        shadow("shadow_failures", "Rankings that the shadow policy failed at.", lambda s: s.failures),
        shadow(
            "shadow_regret_seconds",
            "What its choices would have cost more, in predicted time to the first token.",
            lambda s: s.regret_seconds,
        ),
        shadow(
            "shadow_gain_seconds",
            "What its choices would have cost less, in predicted time to the first token.",
            lambda s: s.gain_seconds,
        ),
        Gauge(
            name="waiting_requests",
            text="Requests in the waiting room.",
            labels=("model", "class"),
            read=waiting,
        ),
        queue("waiting_tokens", "Uncached prompt tokens in the waiting room.", lambda room: room.tokens),
        queue(
            "queue_drain_units_per_second",
            "Cost units that got their turn, over the last half minute.",
            lambda room: room.drained_per_second(),
        ),
        queue(
            "queue_evenness",
            "Jain's index of what tenants that wait have received over their weights; 1 is even.",
            lambda room: room.evenness(),
        ),
        single(
            "preemptions",
            "Batch requests that gave up their place before a first token.",
            lambda: reservations.preemptible.count,
            counter=True,
        ),
        single(
            "queue_shared",
            "1: all gateways give turns together, in Redis; 0: this one alone.",
            lambda: reservations.queue.shared,
        ),
        single(
            "queue_gateways", "Gateways that live, this one included.", lambda: reservations.queue.gateways
        ),
        feed("worker_events", "Batches of KV events heard.", lambda f: f.batches, counter=True),
        feed("worker_events_lag_seconds", "Age of the last batch when it came.", lambda f: f.lag_seconds),
        feed("worker_events_gaps", "Batches missed at first.", lambda f: f.subscriber.gaps, counter=True),
        worker(
            "worker_events_uncertain",
            "1: some of its events were missed, or were before anybody listened; as the writer says.",
            lambda w: bool(feeds.known(w.id) & Known.UNCERTAIN),
        ),
        worker(
            "worker_events_role",
            "2: this gateway writes what the worker publishes; 1: it follows, and would write next; 0: neither.",
            lambda w: feeds.role(w.id),
        ),
        worker(
            "worker_credit_ratio",
            "Share of the blocks known of it that routing counts on; below 1 where that is in doubt.",
            lambda w: feeds.credits.of(w.id),
        ),
        feed(
            "worker_events_lost", "Gaps in its events that nobody can fill.", lambda f: f.losses, counter=True
        ),
        feed("worker_pages", "Pages that the worker says it holds.", lambda f: len(f.follower)),
        single("leases", "Quota leases held by this gateway.", lambda: len(reservations.leases)),
        single("tasks", "Tasks of the event loop.", lambda: len(asyncio.all_tasks())),
        single("redis_up", "1: quotas are shared; 0: this gateway decides alone.", lambda: not quotas.away),
        single("quota_local_decisions", "Made without Redis.", lambda: quotas.local_decisions, counter=True),
        single(
            "quota_escrow",
            "Requests whose quota was there when they came.",
            lambda: escrow.taken,
            counter=True,
        ),
        Gauge(
            name="quota_alerts",
            text="Limits of which as much was used as they ask to be told of, by the gateway that told it.",
            labels=("scope", "limit"),
            read=of_limits(lambda: quotas.events.alerts),
            counter=True,
        ),
        Gauge(
            name="quota_shadow_refusals",
            text="Requests that a limit in mode `shadow` would have refused.",
            labels=("scope", "limit"),
            read=of_limits(lambda: quotas.events.shadows),
            counter=True,
        ),
        single(
            "database_up", "1: tenants follow the database, or there is none; 0: it is away.", database_up
        ),
        Gauge(
            name="token_issuer_up",
            text="1: the keys of an issuer of tokens are known as they are; 0: they could not be read of late.",
            labels=("issuer",),
            read=of_issuers(lambda issuer: issuer.state == "known"),
        ),
        Gauge(
            name="token_issuer_fresh",
            text="1: its tokens can be checked; 0: its keys are not known, or not of late, and they get a 503.",
            labels=("issuer",),
            read=of_issuers(lambda issuer: issuer.fresh),
        ),
        single(
            "keys",
            "API keys in memory, where there is a database.",
            lambda: database.keys if database is not None else 0,
        ),
        single(
            "usage_journal_bytes",
            "What the usage journal holds that is not in the database.",
            lambda: ledger.journal.bytes if ledger is not None else 0,
        ),
        single(
            "usage_shipped",
            "Requests that the database has from this gateway's journal.",
            lambda: ledger.shipper.shipped if ledger is not None else 0,
            counter=True,
        ),
        single(
            "usage_dropped",
            "Requests that the full journal had no room for: they are not accounted for.",
            lambda: ledger.journal.dropped if ledger is not None else 0,
            counter=True,
        ),
        single(
            "webhooks_delivered",
            "Events that webhooks have taken.",
            lambda: ledger.webhooks.delivered if ledger is not None else 0,
            counter=True,
        ),
        single(
            "webhooks_failed",
            "Attempts that they have not; each event is tried again.",
            lambda: ledger.webhooks.failed if ledger is not None else 0,
            counter=True,
        ),
        single(
            "access_log_dropped",
            "Lines of the access log that were not written: too many waited, or the file could not be written.",
            lambda: access_log.dropped if access_log is not None else 0,
            counter=True,
        ),
        single("batches_running", "Batches that this gateway works on.", lambda: batches.batches),
        single("batch_rows_running", "Requests of batches under way.", lambda: batches.rows),
        single("batch_rows", "Requests of batches that have a result.", lambda: batches.done, counter=True),
        single("batch_rows_failed", "Of these, those that failed.", lambda: batches.failed, counter=True),
        single(
            "batch_rows_tried_again",
            "Requests of batches that were refused or failed, and came back.",
            lambda: batches.again,
            counter=True,
        ),
        single("index_blocks", "Blocks in the prefix index.", lambda: index.index.copy.blocks),
        single(
            "index_memory_bytes",
            "Memory that this process's copy of the index takes, about.",
            lambda: index.memory_bytes,
        ),
        Gauge(
            name="index_group_blocks",
            text="Blocks in the prefix index by isolation group, of the thousand that have most.",
            labels=("group",),
            read=group_blocks,
        ),
        single(
            "index_unrecorded",
            "Paths that were not recorded: their tenant has its `cache_blocks_max`.",
            lambda: reservations.shares.unrecorded,
            counter=True,
        ),
        single("index_nodes", "Nodes of the prefix index.", lambda: len(index.index.copy.nodes)),
        single(
            "index_predictions",
            "Predictions under way, of all gateways.",
            lambda: index.index.copy.predictions,
        ),
        single(
            "index_up", "1: the copy of the index follows Redis; 0: it stands still.", lambda: index.reader.up
        ),
        single(
            "index_keeper", "1: this gateway keeps the index within its bounds.", lambda: index.keeper.keeping
        ),
        single(
            "index_gaps", "Changes that were missed and read again.", lambda: index.reader.gaps, counter=True
        ),
        single(
            "index_snapshots", "Shards that were read whole.", lambda: index.reader.snapshots, counter=True
        ),
        single(
            "index_corrections",
            "Answers whose worker had cached less than the index knew; it was cut back.",
            lambda: index.index.corrections,
            counter=True,
        ),
        single(
            "index_refused", "Changes that Redis did not take.", lambda: index.index.refused, counter=True
        ),
    )
