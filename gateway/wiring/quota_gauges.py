"""Gauges of quotas: leases, the shared store, escrow, alerts."""

from collections.abc import Callable, Iterable, Mapping

from gateway.dispatch.dispatch import Dispatch
from gateway.quotas.escrow import Escrow
from gateway.quotas.failover_store import FailoverQuotaStore
from gateway.telemetry.metric_families import CounterFamily, ValueFamily
from gateway.wiring.gauge_kinds import Reading, single_counter, single_gauge


def quota_gauges(dispatch: Dispatch, quotas: FailoverQuotaStore, escrow: Escrow) -> tuple[ValueFamily, ...]:
    """Return the gauges of the quota stores of a gateway."""

    def of_limits(read: Callable[[], Mapping[tuple[str, str], int]]) -> Callable[[], Iterable[Reading]]:
        return lambda: [(labels, float(count)) for labels, count in list(read().items())]

    return (
        single_gauge(
            "radixgate_leases",
            "Quota leases held by this gateway.",
            lambda: len(dispatch.reservations.leases),
        ),
        single_gauge(
            "radixgate_redis_up",
            "Redis for quotas: 1 if it answers and quotas are shared, 0 if this gateway decides alone.",
            lambda: not quotas.away,
        ),
        single_counter(
            "radixgate_quota_local_decisions_total",
            "Quota decisions that this gateway made without Redis.",
            lambda: quotas.local_decisions,
        ),
        single_counter(
            "radixgate_quota_escrow_total",
            "Requests charged to quota that this gateway had reserved in advance.",
            lambda: escrow.taken,
        ),
        CounterFamily(
            name="radixgate_quota_alerts_total",
            text="Alerts sent by this gateway for limits whose usage reached an alert threshold.",
            labels=("scope", "limit"),
            read=of_limits(lambda: quotas.events.alerts),
        ),
        CounterFamily(
            name="radixgate_quota_shadow_refusals_total",
            text="Requests that a limit in `shadow` mode would have refused.",
            labels=("scope", "limit"),
            read=of_limits(lambda: quotas.events.shadows),
        ),
    )
