"""The engine's counts in Prometheus' text format, under the names that vLLM and SGLang give them.

    vllm:...                 labels model_name, engine                         as in vLLM 0.32
    sglang:...               labels model_name, engine_type, and more          as in SGLang 0.5.23
    radixgate_engine_...     label model_name                                  counts that neither of the two has

So dashboards and alerts that were made for either engine read this worker too. A metric that both engines have
shows the same number under both names. Buckets are this engine's own, and finer below 10 ms.
"""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from workers.engine.async_engine import AsyncEngine
from workers.engine.metrics import Histogram

CONTENT_TYPE = CONTENT_TYPE_LATEST
Labels = Mapping[str, str]
Series = Sequence[tuple[Labels, float]]


def exposition(engine: AsyncEngine, model: str) -> bytes:
    """Return the text that Prometheus scrapes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(engine, model))
    return generate_latest(registry)


class EngineCollector(Collector):
    """A Prometheus collector that reads the engine's counts at every scrape and keeps none itself."""

    def __init__(self, engine: AsyncEngine, model: str) -> None:
        self._engine = engine
        self._vllm = {"model_name": model, "engine": "0"}
        self._request = {"model_name": model, "engine_type": "unified"}
        self._scheduler = self._request | {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
        self._own = {"model_name": model}

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family, vLLM's first."""
        yield from self._vllm_state()
        yield from self._vllm_requests()
        yield from self._sglang_state()
        yield from self._sglang_requests()
        yield from self._own_counts()

    def _vllm_state(self) -> Iterator[Metric]:
        loads, counts, labels = self._engine.loads, self._engine.metrics, self._vllm
        yield gauge("vllm:num_requests_running", "Requests in the running batch.", labels, loads.running)
        yield gauge("vllm:num_requests_waiting", "Requests in the waiting queue.", labels, loads.waiting)
        used = loads.used_tokens / loads.pool_tokens
        yield gauge("vllm:kv_cache_usage_perc", "KV cache in use; 1 is all of it.", labels, used)
        figures = counts.by_streaming.values()
        drafts = counts.speculation
        for name, text, value in (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", counts.queried_tokens),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", counts.hit_tokens),
            (
                "num_preemptions",
                "Preemptions: requests that lost their KV blocks to others.",
                counts.preemptions,
            ),
            ("prompt_tokens", "Prompt tokens of all requests.", sum(each.prompt_tokens for each in figures)),
            (
                "prompt_tokens_cached",
                "Prompt tokens that were read from the prefix cache.",
                counts.hit_tokens,
            ),
            (
                "generation_tokens",
                "Tokens generated for all requests.",
                sum(each.generated_tokens for each in figures),
            ),
            ("spec_decode_num_drafts", "Speculative drafts that were verified.", drafts.num_drafts),
            ("spec_decode_num_draft_tokens", "Tokens in speculative drafts.", drafts.num_draft_tokens),
            (
                "spec_decode_num_accepted_tokens",
                "Draft tokens that were accepted.",
                drafts.num_accepted_tokens,
            ),
        ):
            yield counter(f"vllm:{name}", text, [(labels, value)])
        positions = [
            (labels | {"position": str(position)}, count)
            for position, count in enumerate([*drafts.num_accepted_tokens_per_pos])
        ]
        yield counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens, by position in the draft.",
            positions,
        )

    def _vllm_requests(self) -> Iterator[Metric]:
        counts, labels = self._engine.metrics, self._vllm
        streamed, whole = counts.by_streaming[True], counts.by_streaming[False]
        finished = [
            (labels | {"finished_reason": reason.value}, count)
            for reason, count in [*counts.finished.items()]
        ]
        yield counter("vllm:request_success", "Requests that have ended, by finish reason.", finished)
        for name, text, values in (
            (
                "time_to_first_token_seconds",
                "Seconds from a request's arrival to its first token.",
                streamed.ttft.merged_with(whole.ttft),
            ),
            ("inter_token_latency_seconds", "Seconds between two outputs of a request.", counts.itl),
            (
                "request_time_per_output_token_seconds",
                "Seconds per output token after the first: (last - first token) / (output tokens - 1).",
                streamed.tpot.merged_with(whole.tpot),
            ),
            (
                "e2e_request_latency_seconds",
                "Seconds from a request's arrival to its end.",
                streamed.e2e.merged_with(whole.e2e),
            ),
            (
                "request_queue_time_seconds",
                "Seconds from a request's arrival to its first step.",
                counts.queue,
            ),
            (
                "request_prefill_time_seconds",
                "Seconds from a request's first step to its first token.",
                counts.prefill,
            ),
            (
                "request_decode_time_seconds",
                "Seconds from a request's first to its last token.",
                counts.decode,
            ),
            (
                "request_inference_time_seconds",
                "Seconds from a request's first step to its last token.",
                counts.inference,
            ),
            ("request_prompt_tokens", "Prompt tokens of one request.", counts.prompt_lengths),
            ("request_generation_tokens", "Generated tokens of one request.", counts.output_lengths),
            ("request_num_preemptions", "Preemptions of one request.", counts.preemptions_each),
            ("iteration_tokens_total", "Tokens computed in one step.", counts.step_tokens),
        ):
            yield histogram(f"vllm:{name}", text, [(labels, values)])

    def _sglang_state(self) -> Iterator[Metric]:
        loads, counts, info = self._engine.loads, self._engine.metrics, self._engine.info
        labels, drafts = self._scheduler, counts.speculation
        for name, text, value in (
            ("num_running_reqs", "Requests in the running batch.", loads.running),
            ("num_queue_reqs", "Requests in the waiting queue.", loads.waiting),
            ("gen_throughput", "Tokens generated per second.", loads.generated_per_second),
            (
                "cache_hit_rate",
                "Share of prompt tokens that were read from the prefix cache.",
                loads.cache_hit_rate,
            ),
            ("token_usage", "KV cache in use; 1 is all of it.", loads.used_tokens / loads.pool_tokens),
            ("num_used_tokens", "Tokens of KV cache in use.", loads.used_tokens),
            ("kv_used_tokens", "Tokens of KV cache in use.", loads.used_tokens),
            (
                "kv_evictable_tokens",
                "Tokens of KV cache that no request uses and that can be evicted.",
                loads.idle_tokens,
            ),
            (
                "kv_available_tokens",
                "Tokens of KV cache that are free.",
                loads.pool_tokens - loads.used_tokens - loads.idle_tokens,
            ),
            ("max_total_num_tokens", "Tokens that the KV cache holds.", loads.pool_tokens),
            ("page_size", "Tokens per KV cache page.", info.block_size),
            ("num_pages", "Pages in the KV cache.", loads.pool_tokens // info.block_size),
            ("context_len", "Most tokens of a prompt and its answer together.", info.context_length),
            (
                "spec_accept_length",
                "Tokens that one verification of a draft yields on average.",
                drafts.accepted_length,
            ),
            (
                "spec_accept_rate",
                "Share of draft tokens that were accepted.",
                drafts.acceptance_rate,
            ),
        ):
            yield gauge(f"sglang:{name}", text, labels, value)
        yield counter(
            "sglang:num_retracted_requests",
            "Preemptions: requests that lost their KV blocks to others.",
            [(labels, counts.preemptions)],
        )
        modes: Series = [
            (labels | {"mode": "prefill_compute"}, counts.prefill_tokens),
            (labels | {"mode": "prefill_cache"}, counts.hit_tokens),
            (labels | {"mode": "decode"}, counts.decode_tokens),
        ]
        yield counter("sglang:realtime_tokens", "Tokens processed, by kind of work.", modes)
        yield histogram(
            "sglang:queue_time_seconds",
            "Seconds from a request's arrival to its first step.",
            [(labels, counts.queue)],
        )

    def _sglang_requests(self) -> Iterator[Metric]:
        counts, labels = self._engine.metrics, self._request
        by_streaming = [
            (labels | {"is_streaming": str(streamed).lower()}, figures)
            for streamed, figures in counts.by_streaming.items()
        ]
        for name, text, series in (
            (
                "prompt_tokens",
                "Prompt tokens of all requests.",
                [(key, figures.prompt_tokens) for key, figures in by_streaming],
            ),
            (
                "generation_tokens",
                "Tokens generated for all requests.",
                [(key, figures.generated_tokens) for key, figures in by_streaming],
            ),
            (
                "num_requests",
                "Requests that have ended.",
                [(key, figures.requests) for key, figures in by_streaming],
            ),
        ):
            yield counter(f"sglang:{name}", text, series)
        cached: Series = [(labels | {"cache_source": "device"}, counts.hit_tokens)]
        yield counter("sglang:cached_tokens", "Prompt tokens that were read from the prefix cache.", cached)
        aborted = sum(count for reason, count in [*counts.finished.items()] if reason.early)
        yield counter(
            "sglang:num_aborted_requests",
            "Requests that ended before their answer was complete.",
            [(labels, aborted)],
        )
        yield counter(
            "sglang:spec_verify_calls",
            "Speculative drafts that were verified.",
            [(labels, counts.speculation.num_drafts)],
        )
        yield histogram(
            "sglang:inter_token_latency_seconds",
            "Seconds between two outputs of a request.",
            [(labels, counts.itl)],
        )
        for name, text, values in (
            (
                "time_to_first_token_seconds",
                "Seconds from a request's arrival to its first token.",
                [(key, figures.ttft) for key, figures in by_streaming],
            ),
            (
                "request_time_per_output_token_seconds",
                "Seconds per output token after the first: (last - first token) / (output tokens - 1).",
                [(key, figures.tpot) for key, figures in by_streaming],
            ),
            (
                "e2e_request_latency_seconds",
                "Seconds from a request's arrival to its end.",
                [(key, figures.e2e) for key, figures in by_streaming],
            ),
        ):
            yield histogram(f"sglang:{name}", text, values)

    def _own_counts(self) -> Iterator[Metric]:
        counts, labels, work = self._engine.metrics, self._own, self._engine.metrics.work
        grammars = self._engine.grammars
        wasted: Series = [
            (labels | {"reason": "cancelled"}, work.cancelled),
            (labels | {"reason": "rejected_draft"}, work.rejected),
            (labels | {"reason": "recomputed"}, work.recomputed),
            (labels | {"reason": "padding"}, work.padding),
        ]
        prefix = "radixgate_engine"
        for name, text, series in (
            ("computed_tokens", "Token positions computed by the model.", [(labels, work.computed)]),
            ("wasted_tokens", "Computed token positions whose result was not used.", wasted),
            ("good_requests", "Requests that met all latency objectives.", [(labels, counts.good_requests)]),
            (
                "good_tokens",
                "Tokens of the requests that met all latency objectives.",
                [(labels, counts.good_tokens)],
            ),
            ("steps", "Engine steps computed.", [(labels, counts.steps)]),
            (
                "failed_steps",
                "Engine steps that failed, and with them their requests.",
                [(labels, counts.failed_steps)],
            ),
            ("step_seconds", "Seconds spent in engine steps.", [(labels, counts.step_seconds)]),
            ("grammars_compiled", "Grammars compiled, refused ones included.", [(labels, grammars.compiled)]),
            ("grammar_compile_seconds", "Seconds spent compiling grammars.", [(labels, grammars.seconds)]),
        ):
            yield counter(f"{prefix}_{name}", text, series)


def gauge(name: str, text: str, labels: Labels, value: float) -> Metric:
    """Return a gauge family with one value."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def counter(name: str, text: str, series: Series) -> Metric:
    """Return a counter family; its samples have the name with `_total` appended."""
    family = CounterMetricFamily(name, text, labels=list(series[0][0]) if series else ())
    for labels, value in series:
        family.add_metric(list(labels.values()), value)
    return family


def histogram(name: str, text: str, series: Sequence[tuple[Labels, Histogram]]) -> Metric:
    """Return a histogram family with cumulated counts by upper bound."""
    family = HistogramMetricFamily(name, text, labels=list(series[0][0]))
    for labels, values in series:
        buckets, cumulated = [], 0
        # A copy, so that the last bucket equals the count even if a value is observed meanwhile.
        for bound, count in zip([*map(float, values.bounds), float("inf")], [*values.counts], strict=True):
            cumulated += count
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), cumulated))
        family.add_metric(list(labels.values()), buckets, values.sum)
    return family
