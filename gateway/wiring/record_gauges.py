"""Gauges of what a gateway keeps on record: tenants, token issuers, usage, webhooks, access log, batches."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gateway.ledger.ledger import Ledger
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.batch_counts import BatchCounts
from gateway.telemetry.metric_families import GaugeFamily, ValueFamily
from gateway.tenants.sql_directory import SqlDirectory
from gateway.wiring.gauge_kinds import Reading, single_counter, single_gauge

if TYPE_CHECKING:
    from gateway.tenants.token_issuer import Issuer


def record_gauges(
    database: SqlDirectory | None,
    ledger: Ledger | None,
    batches: BatchCounts,
    issuers: "Sequence[Issuer[Any]]",
    access_log: AccessLog | None,
) -> tuple[ValueFamily, ...]:
    """Return the gauges of a gateway's stores; a store is None where the settings do not enable it."""
    return (*_tenant_gauges(database, issuers), *_usage_gauges(ledger, access_log), *_batch_gauges(batches))


def _tenant_gauges(
    database: SqlDirectory | None, issuers: "Sequence[Issuer[Any]]"
) -> tuple[ValueFamily, ...]:
    """Return the gauges of what tenants are authenticated against: the database, and the token issuers."""

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
        single_gauge(
            "radixgate_database_up",
            "Database of tenants: 1 if it answers or there is none, 0 if it does not answer.",
            database_up,
        ),
        GaugeFamily(
            name="radixgate_token_issuer_up",
            text="Token issuer: 1 if its keys could be read at the last attempt, else 0.",
            labels=("issuer",),
            read=of_issuers(lambda issuer: issuer.state == "known"),
        ),
        GaugeFamily(
            name="radixgate_token_issuer_fresh",
            text="Keys of the token issuer: 1 if fresh enough to verify its tokens, 0 if its tokens get a 503.",
            labels=("issuer",),
            read=of_issuers(lambda issuer: issuer.fresh),
        ),
        single_gauge(
            "radixgate_keys",
            "API keys of the database in this gateway's memory.",
            lambda: database.keys if database is not None else 0,
        ),
    )


def _usage_gauges(ledger: Ledger | None, access_log: AccessLog | None) -> tuple[ValueFamily, ...]:
    """Return the gauges of the usage journal, the webhooks and the access log."""
    return (
        single_gauge(
            "radixgate_usage_journal_bytes",
            "Bytes of the usage journal that are not in the database yet.",
            lambda: ledger.journal.bytes if ledger is not None else 0,
        ),
        single_counter(
            "radixgate_usage_shipped_total",
            "Requests shipped from this gateway's usage journal to the database.",
            lambda: ledger.shipper.shipped if ledger is not None else 0,
        ),
        single_counter(
            "radixgate_usage_dropped_total",
            "Requests missing from the accounts because the usage journal was full.",
            lambda: ledger.journal.dropped if ledger is not None else 0,
        ),
        single_counter(
            "radixgate_webhooks_delivered_total",
            "Events that webhooks accepted.",
            lambda: ledger.webhooks.delivered if ledger is not None else 0,
        ),
        single_counter(
            "radixgate_webhooks_failed_total",
            "Failed attempts to deliver an event to a webhook; the event is tried again.",
            lambda: ledger.webhooks.failed if ledger is not None else 0,
        ),
        single_counter(
            "radixgate_access_log_dropped_total",
            "Lines missing from the access log because too many waited or the file could not be written.",
            lambda: access_log.dropped if access_log is not None else 0,
        ),
    )


def _batch_gauges(batches: BatchCounts) -> tuple[ValueFamily, ...]:
    """Return the gauges of batches, and of their rows."""
    return (
        single_gauge(
            "radixgate_batches_running", "Batches that this gateway is running.", lambda: batches.batches
        ),
        single_gauge(
            "radixgate_batch_rows_running",
            "Rows of batches that this gateway is running.",
            lambda: batches.rows,
        ),
        single_counter(
            "radixgate_batch_rows_total",
            "Rows of batches that ended on this gateway, with an answer or an error.",
            lambda: batches.done,
        ),
        single_counter(
            "radixgate_batch_rows_failed_total",
            "Rows of batches that ended on this gateway with an error.",
            lambda: batches.failed,
        ),
        single_counter(
            "radixgate_batch_rows_tried_again_total",
            "Retries of batch rows after a refusal or a failure.",
            lambda: batches.retried,
        ),
    )
