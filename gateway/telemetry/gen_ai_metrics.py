"""OpenTelemetry's GenAI metrics of finished requests, as Prometheus names them; off by default.

Names and buckets follow the repository open-telemetry/semantic-conventions-genai, all "Development"; all names are
in this file.
"""

from collections.abc import Callable

from gateway.telemetry.histogram import HistogramCounters
from gateway.telemetry.metric_families import HistogramFamily
from gateway.telemetry.request_record import RequestRecord
from gateway.telemetry.span_attributes import operation_of

DURATION_BUCKETS = tuple(0.01 * 2**power for power in range(14))
TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TPOT_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKEN_BUCKETS = tuple(float(4**power) for power in range(14))

LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
PROVIDER = "radixgate"


class GenAiHistograms:
    """The histograms of one operation and model."""

    __slots__ = ("duration", "input_tokens", "output_tokens", "tpot", "ttft")

    def __init__(self) -> None:
        self.duration = HistogramCounters(DURATION_BUCKETS)
        self.ttft = HistogramCounters(TTFT_BUCKETS)
        self.tpot = HistogramCounters(TPOT_BUCKETS)
        self.input_tokens = HistogramCounters(TOKEN_BUCKETS)
        self.output_tokens = HistogramCounters(TOKEN_BUCKETS)


class GenAiMetrics:
    """An observer that counts requests which were sent to a worker."""

    def __init__(self) -> None:
        self.histograms: dict[tuple[str, str], GenAiHistograms] = {}
        """By operation and model."""

    def observe(self, record: RequestRecord) -> None:
        """Count one finished request."""
        if record.worker is None:
            return
        key = operation_of(record), record.model
        found = self.histograms.get(key)
        if found is None:
            found = self.histograms[key] = GenAiHistograms()
        found.duration.observe(record.seconds)
        if record.ttft_seconds is not None:
            found.ttft.observe(record.ttft_seconds)
        if record.tpot_seconds is not None:
            found.tpot.observe(record.tpot_seconds)
        if record.answered:
            found.input_tokens.observe(record.prompt_tokens)
            found.output_tokens.observe(record.output_tokens)


def gen_ai_families(metrics: GenAiMetrics) -> tuple[HistogramFamily, ...]:
    """Return the metric families; `metrics` is read at a scrape."""

    def family(name: str, text: str, read: Callable[[GenAiHistograms], HistogramCounters]) -> HistogramFamily:
        return HistogramFamily(
            name=name,
            text=text,
            labels=LABELS,
            read=lambda: [
                ((operation, PROVIDER, model), read(each))
                for (operation, model), each in metrics.histograms.items()
            ],
        )

    def tokens() -> list[tuple[tuple[str, ...], HistogramCounters]]:
        return [
            ((operation, PROVIDER, model, kind), counters)
            for (operation, model), each in metrics.histograms.items()
            for kind, counters in (("input", each.input_tokens), ("output", each.output_tokens))
        ]

    return (
        family(
            "gen_ai_server_request_duration_seconds",
            "Seconds that a request took.",
            lambda each: each.duration,
        ),
        family(
            "gen_ai_server_time_to_first_token_seconds",
            "Seconds from a request's arrival to its first output byte, of streams.",
            lambda each: each.ttft,
        ),
        family(
            "gen_ai_server_time_per_output_token_seconds",
            "Seconds between output tokens, of streams.",
            lambda each: each.tpot,
        ),
        HistogramFamily(
            name="gen_ai_client_token_usage",
            text="Input and output tokens of answered requests.",
            labels=(*LABELS, "gen_ai_token_type"),
            read=tokens,
        ),
    )
