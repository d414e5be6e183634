"""Gauges of quotas: leases, the shared store, escrow, alerts."""

from collections.abc import Callable, Iterable, Mapping

from gateway.dispatch.dispatch import Dispatch
from gateway.quotas.escrow import Escrow
from gateway.quotas.failover_store import FailoverQuotaStore
from gateway.telemetry.gauge_collector import Gauge
from gateway.wiring.gauge_kinds import Reading, single_gauge


def quota_gauges(dispatch: Dispatch, quotas: FailoverQuotaStore, escrow: Escrow) -> tuple[Gauge, ...]:
    """Return the gauges of the quota stores of a gateway."""

    def of_limits(read: Callable[[], Mapping[tuple[str, str], int]]) -> Callable[[], Iterable[Reading]]:
        return lambda: [(labels, float(count)) for labels, count in list(read().items())]

    return (
        single_gauge(
            "leases", "Quota leases held by this gateway.", lambda: len(dispatch.reservations.leases)
        ),
        single_gauge(
            "redis_up",
            "Redis for quotas: 1 if it answers and quotas are shared, 0 if this gateway decides alone.",
            lambda: not quotas.away,
        ),
        single_gauge(
            "quota_local_decisions",
            "Quota decisions that this gateway made without Redis.",
            lambda: quotas.local_decisions,
            counter=True,
        ),
        single_gauge(
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
    )
