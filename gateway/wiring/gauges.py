"""Gauges of the present state, read from a gateway's parts at each scrape: the list of all of them."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gateway.dispatch.dispatch import Dispatch
from gateway.fleet.fleet import Fleet
from gateway.kv_index.kv_event_feeds import KvEventFeeds
from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.ledger.ledger import Ledger
from gateway.models.catalogue import Catalogue
from gateway.quotas.escrow import Escrow
from gateway.quotas.failover_store import FailoverQuotaStore
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.batch_counts import BatchCounts
from gateway.telemetry.metric_families import ValueFamily
from gateway.tenants.sql_directory import SqlDirectory
from gateway.wiring.dispatch_gauges import dispatch_gauges
from gateway.wiring.gauge_kinds import single_gauge
from gateway.wiring.index_gauges import index_gauges
from gateway.wiring.quota_gauges import quota_gauges
from gateway.wiring.record_gauges import record_gauges
from gateway.wiring.worker_gauges import worker_gauges

if TYPE_CHECKING:
    from gateway.tenants.token_issuer import Issuer


def gauges(
    fleet: Fleet,
    dispatch: Dispatch,
    index: SharedIndexParts,
    event_feeds: KvEventFeeds,
    quotas: FailoverQuotaStore,
    escrow: Escrow,
    database: SqlDirectory | None,
    ledger: Ledger | None,
    batches: BatchCounts,
    issuers: "Sequence[Issuer[Any]]" = (),
    access_log: AccessLog | None = None,
    catalogue: Catalogue | None = None,
) -> Iterable[ValueFamily]:
    """Return all metrics of the present state; the parts are read at a scrape, and not before."""

    def models() -> frozenset[str]:
        """Return the models of workers and settings: those of the settings may have no worker at the moment."""
        return fleet.models_beside(None).union(catalogue.configured if catalogue is not None else ())

    return (
        *worker_gauges(fleet, dispatch, models),
        *dispatch_gauges(dispatch, models),
        *index_gauges(fleet, dispatch, index, event_feeds),
        *quota_gauges(dispatch, quotas, escrow),
        *record_gauges(database, ledger, batches, issuers, access_log),
        single_gauge(
            "radixgate_tasks", "Tasks on the event loop of this gateway.", lambda: len(asyncio.all_tasks())
        ),
    )
