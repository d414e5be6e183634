"""Series at which each alert fires, and series at which it keeps silent, in promtool's notation.

`0+60x120` is a counter that rises by 60 each minute, for 120 minutes; `1x120` a gauge that stays 1.
"""

from dataclasses import dataclass

LABELS = 'namespace="llm",job="radixgate-admin"'


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCase:
    """Series by name and labels, with their values; `at`: the minute at which the alert is looked at."""

    fires: dict[str, str]
    silent: dict[str, str]
    at: int = 60


def series(name: str, **labels: str) -> str:
    """Return a series of the release's gateways."""
    more = "".join(f',{label.rstrip("_")}="{value}"' for label, value in labels.items())
    return f"radixgate_{name}{{{LABELS}{more}}}"


def requests(code: str, tenant: str = "acme", model: str = "m") -> str:
    """Return the counter of finished requests with this code."""
    return series("requests_total", tenant=tenant, model=model, code=code)


def outcomes(outcome: str, name: str = "chat") -> str:
    """Return the counter of requests of a service class with this outcome."""
    return series("class_requests_total", class_=name, outcome=outcome)


def buckets(name: str, fast: str, slow: str, **labels: str) -> dict[str, str]:
    """Return a histogram with buckets below 0.1 and above 60 seconds, by the values of their counters."""
    return {
        series(f"{name}_bucket", **labels, le="0.1"): fast,
        series(f"{name}_bucket", **labels, le="60"): slow,
        series(f"{name}_bucket", **labels, le="+Inf"): slow,
    }


CASES = {
    "RadixgateGone": AlertCase(
        fires={'up{job="other"}': "1x60"}, silent={series("redis_up", instance="a"): "0x60"}
    ),
    "RadixgateNoWorkerUp": AlertCase(
        fires={series("worker_health", worker="w", state="up"): "0x60"},
        silent={
            series("worker_health", worker="w", state="up"): "0x60",
            series("worker_health", worker="v", state="up"): "1x60",
        },
    ),
    "RadixgateWorkerDown": AlertCase(
        fires={series("worker_health", worker="w", state="down"): "1x60"},
        silent={series("worker_health", worker="w", state="down"): "0x57 1 1 1"},
    ),
    "RadixgateRequestsFail": AlertCase(
        fires={requests("ok"): "0+60x60", requests("worker_error"): "0+60x60"},
        # Clients that misspell a model, while a worker is down.
        silent={requests("ok"): "0+60x60", requests("no_worker", model="-"): "0+600x60"},
    ),
    "RadixgateOverloaded": AlertCase(
        fires={requests("overloaded"): "0+1x60"}, silent={requests("rate_limit_exceeded"): "0+60x60"}
    ),
    "RadixgateFirstTokenSlow": AlertCase(
        fires=buckets("time_to_first_token_seconds", "0x60", "0+60x60", model="m"),
        silent=buckets("time_to_first_token_seconds", "0+60x60", "0+60x60", model="m"),
    ),
    "RadixgateDispatchSlow": AlertCase(
        fires=buckets("dispatch_duration_seconds", "0x60", "0+60x60", model="m"),
        silent=buckets("dispatch_duration_seconds", "0+60x60", "0+60x60", model="m"),
    ),
    "RadixgateRedisAway": AlertCase(
        fires={series("redis_up", instance="a"): "0x60", series("redis_up", instance="b"): "1x60"},
        silent={series("redis_up", instance="a"): "1x60"},
    ),
    "RadixgateDatabaseAway": AlertCase(
        fires={series("database_up"): "0x60"}, silent={series("database_up"): "1x60"}
    ),
    "RadixgateTokenIssuerAway": AlertCase(
        fires={series("token_issuer_up", issuer="i"): "0x60"},
        silent={series("token_issuer_up", issuer="i"): "1x60"},
    ),
    "RadixgateClassBudgetBurnsFast": AlertCase(
        fires={outcomes("met"): "0+60x120", outcomes("missed"): "0+15x120"},
        silent={
            outcomes("met"): "0+60x120",
            outcomes("missed"): "0+5x120",
            outcomes("missed", "batch"): "0+60x120",
        },
        at=120,
    ),
    "RadixgateClassBudgetBurns": AlertCase(
        fires={outcomes("met"): "0+60x480", outcomes("turned_away"): "0+6x480"},
        silent={outcomes("met"): "0+60x480", outcomes("failed"): "0+1x480"},
        at=480,
    ),
    "RadixgateTenantBudgetBurns": AlertCase(
        fires={requests("ok"): "0+60x120", requests("worker_error"): "0+3x120"},
        silent={
            requests("ok"): "0+60x120",
            requests("no_worker", model="-"): "0+60x120",
            requests("rate_limit_exceeded"): "0+60x120",
        },
        at=120,
    ),
    "RadixgateUsageDropped": AlertCase(
        fires={series("usage_dropped_total"): "0+1x60"}, silent={series("usage_dropped_total"): "5x60"}
    ),
    "RadixgateUsageJournalGrows": AlertCase(
        fires={series("usage_journal_bytes", instance="a"): "100000000x60"},
        silent={series("usage_journal_bytes", instance="a"): "1000000x60"},
    ),
    "RadixgateWebhooksFail": AlertCase(
        fires={
            series("webhooks_failed_total"): "0+1x60",
            series("webhooks_delivered_total"): "7x60",
        },
        silent={
            series("webhooks_failed_total"): "0+1x60",
            series("webhooks_delivered_total"): "0+1x60",
        },
    ),
    "RadixgateIndexStandsStill": AlertCase(
        fires={series("index_up", instance="a"): "0x60"}, silent={series("index_up", instance="a"): "1x60"}
    ),
    "RadixgateEventsLag": AlertCase(
        fires={series("worker_events_lag_seconds", worker="w"): "30x60"},
        silent={series("worker_events_lag_seconds", worker="w"): "1x60"},
    ),
    "RadixgateCircuitOpen": AlertCase(
        fires={series("worker_circuit_open", worker="w"): "1x60"},
        silent={series("worker_circuit_open", worker="w"): "0x60"},
    ),
    # promtool's time begins at 0.
    "RadixgateCertificateExpires": AlertCase(
        fires={series("certificate_expiry_timestamp_seconds", listener="listen"): "90000x120"},
        silent={series("certificate_expiry_timestamp_seconds", listener="listen"): "9000000x120"},
        at=120,
    ),
    "RadixgateKvMemoryFull": AlertCase(
        fires={
            series("worker_kv_tokens", worker="w", instance="a"): "600x60",
            series("worker_kv_tokens", worker="w", instance="b"): "390x60",
            series("worker_kv_tokens_max", worker="w"): "1000x60",
        },
        silent={
            series("worker_kv_tokens", worker="w"): "900x60",
            series("worker_kv_tokens_max", worker="w"): "1000x60",
        },
    ),
    "RadixgateQueueGrows": AlertCase(
        fires={
            series("waiting_tokens", queue="m"): "100000x60",
            series("queue_drain_units_per_second", queue="m"): "1000x60",
        },
        silent={
            series("waiting_tokens", queue="m"): "10000x60",
            series("queue_drain_units_per_second", queue="m"): "1000x60",
            series("waiting_tokens", queue="m#batch"): "10000000x60",
            series("queue_drain_units_per_second", queue="m#batch"): "0x60",
        },
    ),
}
