"""Gauges of the present state: workers, queues, index and quotas, read from the parts at each scrape."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from gateway.dispatch.dispatch import Dispatch
from gateway.dispatch.hedging import OUTCOMES
from gateway.dispatch.placement import Placement
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.kv_index.feeds import KvEventFeeds
from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.kv_index.worker_feeds import RankFeed
from gateway.ledger.ledger import Ledger
from gateway.models.catalogue import Catalogue
from gateway.queueing.waiting_room import WaitingRoom
from gateway.quotas.escrow import Escrow
from gateway.quotas.failover_store import FailoverQuotaStore
from gateway.routing.shadow_policy import ShadowPolicy
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.batch_counts import BatchCounts
from gateway.telemetry.gauge_collector import Gauge
from gateway.tenants.sql_directory import SqlDirectory
from policies.service_class import BATCH, CHAT, CODE, VOICE
from radix_cache.shared.feed_leases import FeedKnowledge
from workers.worker import Health

if TYPE_CHECKING:
    from gateway.tenants.token_issuer import Issuer

GROUPS_MAX = 1000

CLASSES = tuple(each.name for each in (VOICE, CODE, CHAT, BATCH))

Reading = tuple[tuple[str, ...], float]


def gauges(
    fleet: Fleet,
    dispatch: Dispatch,
    index: SharedIndexParts,
    feeds: KvEventFeeds,
    quotas: FailoverQuotaStore,
    escrow: Escrow,
    database: SqlDirectory | None,
    ledger: Ledger | None,
    batches: BatchCounts,
    issuers: "Sequence[Issuer[Any]]" = (),
    access_log: AccessLog | None = None,
    catalogue: Catalogue | None = None,
) -> Iterable[Gauge]:
    """Return all metrics of the present state; the parts are read at a scrape, and not before."""

    def worker(name: str, text: str, read: Callable[[Worker], float], *, counter: bool = False) -> Gauge:
        def read_all() -> list[tuple[tuple[str, ...], float]]:
            return [((w.id,), read(w)) for w in fleet]

        return Gauge(name=name, text=text, labels=("worker",), read=read_all, counter=counter)

    def single(name: str, text: str, read: Callable[[], float], *, counter: bool = False) -> Gauge:
        return Gauge(name=name, text=text, read=lambda: [((), read())], counter=counter)

    def feed(name: str, text: str, read: Callable[[RankFeed], float], *, counter: bool = False) -> Gauge:
        def read_all() -> list[tuple[tuple[str, ...], float]]:
            return [
                ((w.id,), sum(map(read, feeds.rank_feeds(w.id)))) for w in fleet if feeds.rank_feeds(w.id)
            ]

        return Gauge(name=name, text=text, labels=("worker",), read=read_all, counter=counter)

    def models() -> frozenset[str]:
        """Return the models of workers and settings: those of the settings may have no worker at the moment."""
        return fleet.models_beside(None).union(catalogue.configured if catalogue is not None else ())

    def streams() -> list[Reading]:
        counts = dict.fromkeys(models(), 0)
        for each in fleet:
            for model in each.models if each.provider is None else ():
                counts[model] = counts.get(model, 0) + each.load.streams
        return [((model,), float(count)) for model, count in counts.items()]

    def health() -> list[tuple[tuple[str, ...], float]]:
        return [((w.id, state.value), float(w.health.health is state)) for w in fleet for state in Health]

    def waiting() -> list[tuple[tuple[str, ...], float]]:
        # Models and classes without waiting requests are shown with 0: an autoscaler takes no series for no answer.
        counts = Counter({(model, name): 0 for model in models() for name in CLASSES})
        for room in dispatch.rooms.all().values():
            counts.update({(room.model, name): 0 for name in CLASSES})
            counts.update((room.model, ticket.service_class) for ticket in room.waiting())
        counts.update(dispatch.acquisition.first_worker.counts())
        return [(labels, float(count)) for labels, count in counts.items()]

    def queue(
        name: str, text: str, read: Callable[[WaitingRoom[Placement]], float], *, idle: float = 0.0
    ) -> Gauge:
        """`idle`: the value of a model that no request was sent to yet."""

        def read_all() -> list[tuple[tuple[str, ...], float]]:
            rooms = dispatch.rooms.all()
            unused = [((model,), idle) for model in models() if model not in rooms]
            return [*unused, *(((queue,), read(room)) for queue, room in rooms.items())]

        return Gauge(name=name, text=text, labels=("queue",), read=read_all)

    def of_limits(read: Callable[[], Mapping[tuple[str, str], int]]) -> Callable[[], Iterable[Reading]]:
        return lambda: [(labels, float(count)) for labels, count in list(read().items())]

    def group_blocks() -> list[Reading]:
        largest = nlargest(GROUPS_MAX, dispatch.index_quota.blocks_by_group().items(), key=itemgetter(1))
        return [((group,), float(blocks)) for group, blocks in largest]

    def shadow(name: str, text: str, read: Callable[[ShadowPolicy], float]) -> Gauge:
        def read_it() -> list[tuple[tuple[str, ...], float]]:
            return [((), read(second))] if (second := dispatch.router.shadow) is not None else []

        return Gauge(name=name, text=text, read=read_it, counter=True)

    def of_issuers(read: "Callable[[Issuer[Any]], float]") -> Callable[[], Iterable[Reading]]:
        """Read each issuer once: of an issuer that tenants and operators share, the lower value counts."""

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
            name="worker_health",
            text="Health of the worker: 1 for its present state, 0 for the other states.",
            labels=("worker", "state"),
            read=health,
        ),
        worker(
            "worker_streams", "Requests of this gateway that the worker is serving.", lambda w: w.load.streams
        ),
        Gauge(
            name="model_streams",
            text="Requests of this gateway on workers of the model, including requests for their other models.",
            labels=("model",),
            read=streams,
        ),
        worker(
            "worker_queued_tokens",
            "Estimated uncached prompt tokens of requests that the worker has not sent a first token for.",
            lambda w: w.load.tokens_queued,
        ),
        worker(
            "worker_kv_tokens",
            "Tokens in KV memory of the requests that the worker is serving, by estimate.",
            lambda w: w.load.kv_tokens,
        ),
        Gauge(
            name="worker_kv_tokens_max",
            text="Tokens that fit into the worker's KV memory, of workers that report it.",
            labels=("worker",),
            read=lambda: [
                ((w.id,), float(w.report.kv_tokens_max)) for w in fleet if w.report.kv_tokens_max is not None
            ],
        ),
        worker(
            "worker_load_heard",
            "Source of the worker's load: 1 if its load feed is heard, 0 if it is probed or not known.",
            lambda w: w.load.is_heard,
        ),
        worker(
            "worker_failures",
            "Requests that the worker failed to answer.",
            lambda w: w.failures,
            counter=True,
        ),
        worker(
            "worker_circuit_open",
            "Circuit of the worker: 1 if it is open (too many requests failed, though probes succeed), else 0.",
            lambda w: w.health.circuit_open,
        ),
        single(
            "retries",
            "Retries of requests on another worker, after an attempt without a first byte.",
            lambda: dispatch.retries.spent,
            counter=True,
        ),
        single(
            "retries_refused",
            "Retries refused by the retry budget (`requests.retries`).",
            lambda: dispatch.retries.refused,
            counter=True,
        ),
        Gauge(
            name="hedges",
            text="Hedged requests (sent to a second worker as the first was late), by outcome of the second: "
            "`won`, `lost`, `failed`, or `left` by the client.",
            labels=("outcome",),
            read=lambda: [((name,), float(dispatch.hedging.outcomes[name])) for name in OUTCOMES],
            counter=True,
        ),
        Gauge(
            name="provider_resting",
            text="Backoff of the provider: 1 while it gets no requests after it answered 429, else 0.",
            labels=("worker",),
            read=lambda: [
                ((w.id,), float(w.rests_until > fleet.now())) for w in fleet if w.provider is not None
            ],
        ),
        Gauge(
            name="provider_limited",
            text="Requests not sent to the provider because one of its limits was reached.",
            labels=("worker",),
            read=lambda: [
                ((w.id,), float(dispatch.provider_quota.refused[w.id]))
                for w in fleet
                if w.provider is not None
            ],
            counter=True,
        ),
        worker(
            "worker_circuit_openings",
            "Openings of the worker's circuit.",
            lambda w: w.openings,
            counter=True,
        ),
        worker(
            "worker_step_seconds",
            "Learnt seconds between the tokens of a stream on the worker.",
            lambda w: w.speed.step_ms / 1000,
        ),
        worker(
            "worker_prefill_seconds_per_token",
            "Learnt seconds of prefill per uncached prompt token on the worker.",
            lambda w: w.speed.ms_per_token / 1000,
        ),
        shadow("shadow_compared", "Requests that the shadow policy ranked.", lambda s: s.compared),
        shadow(
            "shadow_differed",
            "Requests for which the shadow policy chose another worker than the policy.",
            lambda s: s.differed,
        ),
        shadow("shadow_failures", "Rankings at which the shadow policy failed.", lambda s: s.failures),
        shadow(
            "shadow_regret_seconds",
            "Seconds of predicted time to first token that the shadow policy's choices would have added.",
            lambda s: s.regret_seconds,
        ),
        shadow(
            "shadow_gain_seconds",
            "Seconds of predicted time to first token that the shadow policy's choices would have saved.",
            lambda s: s.gain_seconds,
        ),
        Gauge(
            name="waiting_requests",
            text="Requests in the waiting room, by model and service class.",
            labels=("model", "class"),
            read=waiting,
        ),
        queue("waiting_tokens", "Uncached prompt tokens in the waiting room.", lambda room: room.tokens),
        queue(
            "queue_drain_units_per_second",
            "Cost units per second that left the waiting room for a worker, over the last half minute.",
            lambda room: room.drained_per_second(),
        ),
        queue(
            "queue_evenness",
            "Jain's fairness index of service per weight among waiting tenants; 1 is perfectly fair.",
            lambda room: room.evenness(),
            idle=1.0,
        ),
        single(
            "preemptions",
            "Batch requests that gave up their placement before a first token, for a request of another class.",
            lambda: dispatch.preemption.count,
            counter=True,
        ),
        single(
            "queue_shared",
            "Mode of the queue: 1 if all gateways share one order in Redis, 0 if this gateway orders alone.",
            lambda: dispatch.queue.shared,
        ),
        single("queue_gateways", "Live gateways, this one included.", lambda: dispatch.queue.gateways),
        feed(
            "worker_events",
            "Batches of KV events received from the worker.",
            lambda f: f.batches,
            counter=True,
        ),
        feed(
            "worker_events_lag_seconds",
            "Age in seconds of the worker's last batch of KV events on arrival.",
            lambda f: f.lag_seconds,
        ),
        feed(
            "worker_events_gaps",
            "Gaps in the worker's KV events for which a replay was asked.",
            lambda f: f.subscriber.gaps,
            counter=True,
        ),
        worker(
            "worker_events_uncertain",
            "Completeness of the worker's KV events: 1 if some were missed or preceded the subscription, else 0.",
            lambda w: bool(feeds.knowledge(w.id) & FeedKnowledge.UNCERTAIN),
        ),
        worker(
            "worker_events_role",
            "Role of this gateway for the worker's KV events: 2 as their writer, 1 as the next writer, "
            "which follows, 0 if neither.",
            lambda w: feeds.role(w.id),
        ),
        worker(
            "worker_credit_ratio",
            "Share of the worker's indexed blocks that routing counts on; below 1 after contradicting reports.",
            lambda w: feeds.match_confidence.of(w.id),
        ),
        feed(
            "worker_events_lost",
            "Gaps in the worker's KV events that no replay could fill.",
            lambda f: f.losses,
            counter=True,
        ),
        feed("worker_pages", "KV pages that the worker reports to hold.", lambda f: len(f.follower)),
        single("leases", "Quota leases held by this gateway.", lambda: len(dispatch.reservations.leases)),
        single("tasks", "Tasks on the event loop of this gateway.", lambda: len(asyncio.all_tasks())),
        single(
            "redis_up",
            "Redis for quotas: 1 if it answers and quotas are shared, 0 if this gateway decides alone.",
            lambda: not quotas.away,
        ),
        single(
            "quota_local_decisions",
            "Quota decisions that this gateway made without Redis.",
            lambda: quotas.local_decisions,
            counter=True,
        ),
        single(
            "quota_escrow",
            "Requests charged to quota that this gateway had reserved in advance.",
            lambda: escrow.taken,
            counter=True,
        ),
        Gauge(
            name="quota_alerts",
            text="Alerts sent by this gateway for limits whose usage reached an alert threshold.",
            labels=("scope", "limit"),
            read=of_limits(lambda: quotas.events.alerts),
            counter=True,
        ),
        Gauge(
            name="quota_shadow_refusals",
            text="Requests that a limit in `shadow` mode would have refused.",
            labels=("scope", "limit"),
            read=of_limits(lambda: quotas.events.shadows),
            counter=True,
        ),
        single(
            "database_up",
            "Database of tenants: 1 if it answers or there is none, 0 if it does not answer.",
            database_up,
        ),
        Gauge(
            name="token_issuer_up",
            text="Token issuer: 1 if its keys could be read at the last attempt, else 0.",
            labels=("issuer",),
            read=of_issuers(lambda issuer: issuer.state == "known"),
        ),
        Gauge(
            name="token_issuer_fresh",
            text="Keys of the token issuer: 1 if fresh enough to verify its tokens, 0 if its tokens get a 503.",
            labels=("issuer",),
            read=of_issuers(lambda issuer: issuer.fresh),
        ),
        single(
            "keys",
            "API keys of the database in this gateway's memory.",
            lambda: database.keys if database is not None else 0,
        ),
        single(
            "usage_journal_bytes",
            "Bytes of the usage journal that are not in the database yet.",
            lambda: ledger.journal.bytes if ledger is not None else 0,
        ),
        single(
            "usage_shipped",
            "Requests shipped from this gateway's usage journal to the database.",
            lambda: ledger.shipper.shipped if ledger is not None else 0,
            counter=True,
        ),
        single(
            "usage_dropped",
            "Requests missing from the accounts because the usage journal was full.",
            lambda: ledger.journal.dropped if ledger is not None else 0,
            counter=True,
        ),
        single(
            "webhooks_delivered",
            "Events that webhooks accepted.",
            lambda: ledger.webhooks.delivered if ledger is not None else 0,
            counter=True,
        ),
        single(
            "webhooks_failed",
            "Failed attempts to deliver an event to a webhook; the event is tried again.",
            lambda: ledger.webhooks.failed if ledger is not None else 0,
            counter=True,
        ),
        single(
            "access_log_dropped",
            "Lines missing from the access log because too many waited or the file could not be written.",
            lambda: access_log.dropped if access_log is not None else 0,
            counter=True,
        ),
        single("batches_running", "Batches that this gateway is running.", lambda: batches.batches),
        single("batch_rows_running", "Rows of batches that this gateway is running.", lambda: batches.rows),
        single(
            "batch_rows",
            "Rows of batches that ended on this gateway, with an answer or an error.",
            lambda: batches.done,
            counter=True,
        ),
        single(
            "batch_rows_failed",
            "Rows of batches that ended on this gateway with an error.",
            lambda: batches.failed,
            counter=True,
        ),
        single(
            "batch_rows_tried_again",
            "Retries of batch rows after a refusal or a failure.",
            lambda: batches.retried,
            counter=True,
        ),
        single("index_blocks", "Blocks in the prefix index.", lambda: index.index.replica.blocks),
        single(
            "index_memory_bytes",
            "Approximate bytes of memory that this process's copy of the prefix index takes.",
            lambda: index.memory_bytes,
        ),
        Gauge(
            name="index_group_blocks",
            text="Blocks in the prefix index by isolation group, for the thousand largest groups.",
            labels=("group",),
            read=group_blocks,
        ),
        single(
            "index_unrecorded",
            "Prompts not recorded in the prefix index because their tenant had reached `cache_blocks_max`.",
            lambda: dispatch.index_quota.unrecorded_paths,
            counter=True,
        ),
        single("index_nodes", "Nodes of the prefix index.", lambda: len(index.index.replica.nodes)),
        single(
            "index_predictions",
            "Predictions in the prefix index of what workers are about to cache, of all gateways.",
            lambda: index.index.replica.predictions,
        ),
        single(
            "index_up",
            "Copy of the prefix index: 1 if it follows Redis, 0 if it stands still.",
            lambda: index.reader.up,
        ),
        single(
            "index_keeper",
            "Maintenance of the prefix index: 1 if this gateway keeps it within its bounds, else 0.",
            lambda: index.maintenance.is_leader,
        ),
        single(
            "index_gaps",
            "Gaps in the changes of the prefix index, whose shard was read again.",
            lambda: index.reader.gaps,
            counter=True,
        ),
        single(
            "index_snapshots",
            "Shards of the prefix index that were read completely.",
            lambda: index.reader.snapshots,
            counter=True,
        ),
        single(
            "index_corrections",
            "Corrections of the prefix index after a worker reported fewer cached tokens than indexed.",
            lambda: index.index.corrections,
            counter=True,
        ),
        single(
            "index_refused",
            "Changes of the prefix index that Redis refused.",
            lambda: index.index.refused,
            counter=True,
        ),
    )
