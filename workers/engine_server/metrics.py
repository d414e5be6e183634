"""The engine's counts in Prometheus' text format, under the names that vLLM and SGLang give them.

    vllm:...                 labels model_name, engine                         as vLLM 0.32 has them
    sglang:...               labels model_name, engine_type, and more          as SGLang 0.5.23 has them
    radixgate_engine_...     label model_name                                  what neither of them counts

So dashboards and alerts that were made for either of them read this worker too. Where the two mean the same it is
the same number; buckets are the engine's own and finer below 10 ms.
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
    """The page that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(engine, model))
    return generate_latest(registry)


class EngineCollector(Collector):
    """Reads the engine's counts whenever it is asked; keeps none of its own."""

    def __init__(self, engine: AsyncEngine, model: str) -> None:
        self._engine = engine
        self._vllm = {"model_name": model, "engine": "0"}
        self._request = {"model_name": model, "engine_type": "unified"}
        self._scheduler = self._request | {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
        self._own = {"model_name": model}

    def collect(self) -> Iterator[Metric]:
        """Every family, vLLM's first."""
        yield from self._vllm_state()
        yield from self._vllm_requests()
        yield from self._sglang_state()
        yield from self._sglang_requests()
        yield from self._own_counts()

    def _vllm_state(self) -> Iterator[Metric]:
        loads, counts, labels = self._engine.loads, self._engine.metrics, self._vllm
        yield gauge("vllm:num_requests_running", "Requests that are computed.", labels, loads.running)
        yield gauge("vllm:num_requests_waiting", "Requests that wait.", labels, loads.waiting)
        used = loads.used_tokens / loads.pool_tokens
        yield gauge("vllm:kv_cache_usage_perc", "KV cache in use; 1 is all of it.", labels, used)
        figures = counts.by_streaming.values()
        drafts = counts.speculation
        for name, text, value in (
            ("prefix_cache_queries", "Prompt tokens that were looked up.", counts.queried_tokens),
            ("prefix_cache_hits", "Prompt tokens that were found.", counts.hit_tokens),
            ("num_preemptions", "Requests that lost their blocks to others.", counts.preemptions),
            ("prompt_tokens", "Tokens of prompts.", sum(each.prompt_tokens for each in figures)),
            ("prompt_tokens_cached", "Tokens of prompts that were cached.", counts.hit_tokens),
            ("generation_tokens", "Tokens generated.", sum(each.generated_tokens for each in figures)),
            ("spec_decode_num_drafts", "Drafts that were verified.", drafts.num_drafts),
            ("spec_decode_num_draft_tokens", "Tokens of drafts.", drafts.num_draft_tokens),
            ("spec_decode_num_accepted_tokens", "Draft tokens that were right.", drafts.num_accepted_tokens),
        ):
            yield counter(f"vllm:{name}", text, [(labels, value)])
        places = [
            (labels | {"position": str(place)}, count)
            for place, count in enumerate([*drafts.num_accepted_tokens_per_pos])
        ]
        yield counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by place in a draft.", places
        )

    def _vllm_requests(self) -> Iterator[Metric]:
        counts, labels = self._engine.metrics, self._vllm
        streamed, whole = counts.by_streaming[True], counts.by_streaming[False]
        finished = [
            (labels | {"finished_reason": reason.value}, count)
            for reason, count in [*counts.finished.items()]
        ]
        yield counter("vllm:request_success", "Requests that have ended, by reason.", finished)
        for name, text, values in (
            ("time_to_first_token_seconds", "Arrival to first token.", streamed.ttft.plus(whole.ttft)),
            ("inter_token_latency_seconds", "Gap between two outputs.", counts.itl),
            (
                "request_time_per_output_token_seconds",
                "(last - first token) / (output tokens - 1).",
                streamed.tpot.plus(whole.tpot),
            ),
            ("e2e_request_latency_seconds", "Arrival to end.", streamed.e2e.plus(whole.e2e)),
            ("request_queue_time_seconds", "Arrival to first step.", counts.queue),
            ("request_prefill_time_seconds", "First step to first token.", counts.prefill),
            ("request_decode_time_seconds", "First to last token.", counts.decode),
            ("request_inference_time_seconds", "First step to last token.", counts.inference),
            ("request_prompt_tokens", "Tokens of a prompt.", counts.prompt_lengths),
            ("request_generation_tokens", "Tokens of an answer.", counts.output_lengths),
            ("request_num_preemptions", "How often a request was preempted.", counts.preemptions_each),
            ("iteration_tokens_total", "Tokens of a step.", counts.step_tokens),
        ):
            yield histogram(f"vllm:{name}", text, [(labels, values)])

    def _sglang_state(self) -> Iterator[Metric]:
        loads, counts, info = self._engine.loads, self._engine.metrics, self._engine.info
        labels, drafts = self._scheduler, counts.speculation
        for name, text, value in (
            ("num_running_reqs", "Requests that are computed.", loads.running),
            ("num_queue_reqs", "Requests that wait.", loads.waiting),
            ("gen_throughput", "Tokens generated in a second.", loads.generated_per_second),
            ("cache_hit_rate", "Cached prompt tokens / prompt tokens.", loads.cache_hit_rate),
            ("token_usage", "KV cache in use; 1 is all of it.", loads.used_tokens / loads.pool_tokens),
            ("num_used_tokens", "Tokens of KV cache in use.", loads.used_tokens),
            ("kv_used_tokens", "Tokens of KV cache in use.", loads.used_tokens),
            ("kv_evictable_tokens", "Tokens cached and in nobody's use.", loads.idle_tokens),
            (
                "kv_available_tokens",
                "Tokens of KV cache that are free.",
                loads.pool_tokens - loads.used_tokens - loads.idle_tokens,
            ),
            ("max_total_num_tokens", "Tokens that the KV cache holds.", loads.pool_tokens),
            ("page_size", "Tokens of a KV page.", info.block_size),
            ("num_pages", "Pages of the KV cache.", loads.pool_tokens // info.block_size),
            ("context_len", "Longest prompt and answer together.", info.context_length),
            (
                "spec_accept_length",
                "Tokens that a verification gives.",
                drafts.accepted_length,
            ),
            (
                "spec_accept_rate",
                "Accepted draft tokens / draft tokens.",
                drafts.acceptance_rate,
            ),
        ):
            yield gauge(f"sglang:{name}", text, labels, value)
        yield counter(
            "sglang:num_retracted_requests",
            "Requests that lost their blocks.",
            [(labels, counts.preemptions)],
        )
        modes: Series = [
            (labels | {"mode": "prefill_compute"}, counts.prefill_tokens),
            (labels | {"mode": "prefill_cache"}, counts.hit_tokens),
            (labels | {"mode": "decode"}, counts.decode_tokens),
        ]
        yield counter("sglang:realtime_tokens", "Tokens by what they were processed for.", modes)
        yield histogram("sglang:queue_time_seconds", "Arrival to first step.", [(labels, counts.queue)])

    def _sglang_requests(self) -> Iterator[Metric]:
        counts, labels = self._engine.metrics, self._request
        by = [
            (labels | {"is_streaming": str(streamed).lower()}, figures)
            for streamed, figures in counts.by_streaming.items()
        ]
        for name, text, series in (
            ("prompt_tokens", "Tokens of prompts.", [(each, of.prompt_tokens) for each, of in by]),
            ("generation_tokens", "Tokens generated.", [(each, of.generated_tokens) for each, of in by]),
            ("num_requests", "Requests that have ended.", [(each, of.requests) for each, of in by]),
        ):
            yield counter(f"sglang:{name}", text, series)
        cached: Series = [(labels | {"cache_source": "device"}, counts.hit_tokens)]
        yield counter("sglang:cached_tokens", "Prompt tokens that were cached.", cached)
        aborted = sum(count for reason, count in [*counts.finished.items()] if reason.early)
        yield counter("sglang:num_aborted_requests", "Requests that were aborted.", [(labels, aborted)])
        yield counter(
            "sglang:spec_verify_calls",
            "Drafts that were verified.",
            [(labels, counts.speculation.num_drafts)],
        )
        yield histogram(
            "sglang:inter_token_latency_seconds", "Gap between two outputs.", [(labels, counts.itl)]
        )
        for name, text, values in (
            ("time_to_first_token_seconds", "Arrival to first token.", [(each, of.ttft) for each, of in by]),
            (
                "request_time_per_output_token_seconds",
                "(last - first token) / (output tokens - 1).",
                [(each, of.tpot) for each, of in by],
            ),
            ("e2e_request_latency_seconds", "Arrival to end.", [(each, of.e2e) for each, of in by]),
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
            ("computed_tokens", "Token positions that went through the model.", [(labels, work.computed)]),
            ("wasted_tokens", "Those of them that nobody needed.", wasted),
            ("good_requests", "Requests that met all objectives.", [(labels, counts.good_requests)]),
            ("good_tokens", "Tokens computed for them.", [(labels, counts.good_tokens)]),
            ("steps", "Steps computed.", [(labels, counts.steps)]),
            ("step_seconds", "Time in steps.", [(labels, counts.step_seconds)]),
            ("grammars_compiled", "Grammars, those refused included.", [(labels, grammars.compiled)]),
            ("grammar_compile_seconds", "Time in compiling them.", [(labels, grammars.seconds)]),
        ):
            yield counter(f"{prefix}_{name}", text, series)


def gauge(name: str, text: str, labels: Labels, value: float) -> Metric:
    """One value that goes up and down."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def counter(name: str, text: str, series: Series) -> Metric:
    """Values that only grow; `_total` is added to the name."""
    family = CounterMetricFamily(name, text, labels=list(series[0][0]) if series else ())
    for labels, value in series:
        family.add_metric(list(labels.values()), value)
    return family


def histogram(name: str, text: str, series: Sequence[tuple[Labels, Histogram]]) -> Metric:
    """Cumulated counts by upper bound."""
    family = HistogramMetricFamily(name, text, labels=list(series[0][0]))
    for labels, values in series:
        buckets, so_far = [], 0
        # From a copy, so that the last bucket is the count whatever is observed meanwhile.
        for bound, count in zip([*map(float, values.bounds), float("inf")], [*values.counts], strict=True):
            so_far += count
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), so_far))
        family.add_metric(list(labels.values()), buckets, values.sum)
    return family
