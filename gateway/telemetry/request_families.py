"""The metrics of finished requests: names, HELP texts and labels, and how each reads RequestMetrics at a scrape.

The metrics reference and the dashboard are checked against this file.
"""

from collections.abc import Callable, Mapping

from gateway.telemetry.histogram import HistogramCounters
from gateway.telemetry.metric_families import CounterFamily, HistogramFamily, MetricFamily
from gateway.telemetry.metrics import (
    PairCounters,
    RequestHistograms,
    RequestMetrics,
    RoutingCounters,
    WorkerCounters,
)

Families = tuple[MetricFamily, ...]


def request_families(metrics: RequestMetrics, *, tenant_histograms: bool = False) -> Families:
    """Return all metric families of finished requests; `metrics` is read at a scrape, and not before.

    `tenant_histograms`: see RequestMetrics.
    """
    return (
        *_counters_by_pair(metrics),
        *_counters_by_worker(metrics),
        *_histograms(metrics, tenant_histograms=tenant_histograms),
        *_counters_by_policy(metrics),
        *_families_by_class(metrics),
    )


def _counters_by_pair(metrics: RequestMetrics) -> Families:
    def counter(name: str, text: str, read: Callable[[PairCounters], float]) -> CounterFamily:
        return CounterFamily(
            name=name,
            text=text,
            labels=("tenant", "model"),
            read=lambda: [(pair, read(counters)) for pair, counters in metrics.pairs.items()],
        )

    return (
        CounterFamily(
            name="radixgate_requests_total",
            text="Finished requests, by error code (`ok` if none).",
            labels=("tenant", "model", "code"),
            read=lambda: metrics.outcomes.items(),
        ),
        counter(
            "radixgate_prompt_tokens_total", "Prompt tokens of answered requests.", lambda c: c.prompt_tokens
        ),
        counter(
            "radixgate_cached_tokens_total",
            "Prompt tokens that workers reported as cached.",
            lambda c: c.cached_tokens,
        ),
        counter(
            "radixgate_predicted_cached_tokens_total",
            "Cached prompt tokens that routing predicted, in answers that report cached tokens.",
            lambda c: c.predicted_tokens,
        ),
        counter(
            "radixgate_cached_tokens_error_total",
            "Absolute differences between predicted and reported cached tokens, summed over answers.",
            lambda c: c.cached_error,
        ),
        counter(
            "radixgate_output_tokens_total",
            "Output tokens of requests that were sent to a worker.",
            lambda c: c.output_tokens,
        ),
    )


def _counters_by_worker(metrics: RequestMetrics) -> Families:
    def counter(name: str, text: str, read: Callable[[WorkerCounters], float]) -> CounterFamily:
        return CounterFamily(
            name=name,
            text=text,
            labels=("worker",),
            read=lambda: [((worker,), read(counters)) for worker, counters in metrics.workers.items()],
        )

    return (
        counter("radixgate_worker_requests_total", "Requests answered by the worker.", lambda c: c.requests),
        counter(
            "radixgate_worker_usage_refused_total",
            "Answers with impossible token counts, for which the gateway's own count was charged.",
            lambda c: c.usage_impossible,
        ),
        counter(
            "radixgate_worker_prefills_total",
            "Prompts that the worker computed as the prefill worker of a pair, for an answer by another worker.",
            lambda c: c.prefills,
        ),
        counter(
            "radixgate_worker_prompt_tokens_total",
            "Prompt tokens of answered requests, by worker.",
            lambda c: c.prompt_tokens,
        ),
        counter(
            "radixgate_worker_cached_tokens_total",
            "Prompt tokens that the worker reported as cached.",
            lambda c: c.cached_tokens,
        ),
        counter(
            "radixgate_worker_predicted_cached_tokens_total",
            "Cached prompt tokens that routing predicted on the worker, in answers that report cached tokens.",
            lambda c: c.predicted_tokens,
        ),
        counter(
            "radixgate_worker_cached_tokens_error_total",
            "Absolute differences between predicted and reported cached tokens, summed over the worker's answers.",
            lambda c: c.cached_error,
        ),
        counter(
            "radixgate_worker_ttft_seconds_total",
            "Seconds from dispatch to the worker's first token, summed over streams.",
            lambda c: c.worker_ttft,
        ),
        counter(
            "radixgate_worker_predicted_ttft_seconds_total",
            "Seconds that the latency model predicted from dispatch to the first token, summed over streams.",
            lambda c: c.predicted_ttft,
        ),
        counter(
            "radixgate_worker_ttft_error_seconds_total",
            "Absolute differences in seconds between predicted and measured time to first token, summed.",
            lambda c: c.ttft_error,
        ),
    )


def _histograms(metrics: RequestMetrics, *, tenant_histograms: bool) -> Families:
    labels = ("tenant", "class", "model") if tenant_histograms else ("class", "model")

    def by_class(
        name: str, text: str, read: Callable[[RequestHistograms], HistogramCounters]
    ) -> HistogramFamily:
        return HistogramFamily(
            name=name,
            text=text,
            labels=labels,
            read=lambda: [(values, read(times)) for values, times in metrics.histograms.items()],
        )

    return (
        by_class(
            "radixgate_request_duration_seconds",
            "Seconds from a request's arrival to its end, for requests that were sent to a worker.",
            lambda c: c.duration,
        ),
        by_class(
            "radixgate_time_to_first_token_seconds",
            "Seconds from a request's arrival to the first output byte handed to the client's socket, of streams.",
            lambda c: c.ttft,
        ),
        by_class(
            "radixgate_time_per_output_token_seconds",
            "Seconds between output tokens, of streams: (last - first output byte) / (output tokens - 1).",
            lambda c: c.tpot,
        ),
        by_class(
            "radixgate_queue_duration_seconds",
            "Seconds in the waiting room, of requests that waited.",
            lambda c: c.queue,
        ),
        HistogramFamily(
            name="radixgate_dispatch_duration_seconds",
            text="Seconds from arrival to dispatch, excluding the time in the waiting room: the gateway's own "
            "work.",
            labels=("model",),
            read=lambda: _with_one_label(metrics.dispatch),
        ),
    )


def _counters_by_policy(metrics: RequestMetrics) -> Families:
    def counter(name: str, text: str, read: Callable[[RoutingCounters], float]) -> CounterFamily:
        return CounterFamily(
            name=name,
            text=text,
            labels=("by",),
            read=lambda: [((policy,), read(counters)) for policy, counters in metrics.policies.items()],
        )

    return (
        counter(
            "radixgate_routing_requests_total",
            "Answered streams, by the policy that chose the worker (`policy` or `shadow`).",
            lambda c: c.requests,
        ),
        counter(
            "radixgate_routing_ttft_seconds_total",
            "Seconds from dispatch to the first token, summed over streams, by the policy that chose the worker.",
            lambda c: c.worker_ttft,
        ),
        counter(
            "radixgate_routing_uncached_tokens_total",
            "Uncached prompt tokens that workers reported for streams, by the policy that chose the worker.",
            lambda c: c.uncached_tokens,
        ),
    )


def _families_by_class(metrics: RequestMetrics) -> Families:
    return (
        CounterFamily(
            name="radixgate_class_requests_total",
            text="Finished requests by service class and outcome: target for the first token `met` or `missed`, "
            "`turned_away` by the queue, `left` by the client before the first token, `failed`, or `unknown` if "
            "the answer was not streamed.",
            labels=("class", "outcome"),
            read=lambda: metrics.class_outcomes.items(),
        ),
        HistogramFamily(
            name="radixgate_class_time_to_first_token_seconds",
            text="Seconds from arrival to a worker's first token, by service class; also of answers that the "
            "gateway assembled from a stream.",
            labels=("class",),
            read=lambda: _with_one_label(metrics.class_first_token),
        ),
    )


def _with_one_label(
    histograms: Mapping[str, HistogramCounters],
) -> list[tuple[tuple[str, ...], HistogramCounters]]:
    return [((value,), counters) for value, counters in histograms.items()]
