"""Prometheus metrics of finished requests, observed from each RequestRecord.

Gauges of the present state are in gateway/wiring/gauges.py. The README's list and the dashboard are checked against
both. Labels are bounded: models and workers come from the settings or the catalogue, codes from
gateway/domain/errors.py, and tenants are labelled by name until there are PAIRS_MAX pairs of tenant and model.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram

from gateway.telemetry.record import CLIENT_CLOSED, OK, OTHER_TENANTS, RequestRecord

TTFT_BUCKETS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    30.0,
    120.0,
)
TPOT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION_BUCKETS = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
    300.0,
)
DISPATCH_BUCKETS = (
    0.0001,
    0.0002,
    0.0004,
    0.0008,
    0.0016,
    0.0032,
    0.0064,
    0.0128,
    0.0256,
    0.1,
    1.0,
    10.0,
    60.0,
)

UNKNOWN_LABEL = "-"
"""Label value of what is not known: the tenant of a bad key, the model of a bad request."""

PAIRS_MAX = 4096
"""How many pairs of tenant and model have series of their own.

Each pair takes 25 kB, and some 80 lines of every scrape; later tenants are counted together.
"""


TURNED_AWAY_CODES = frozenset(
    {"admission_timeout", "deadline_exceeded", "overloaded", "target_missed", "too_many_waiting"}
)
"""Error codes of requests that the queue has turned away."""

POLICY, SHADOW = "policy", "shadow"


class RequestMetrics:
    """An observer that counts finished requests.

    Metric children with their labels bound are kept in dictionaries, since looking them up in prometheus_client
    costs more.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, namespace="radixgate", registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, namespace="radixgate", registry=registry, buckets=buckets)

        self.requests = counter(
            "requests", "Finished requests, by error code (`ok` if none).", "tenant", "model", "code"
        )
        self.prompt_tokens = counter(
            "prompt_tokens", "Prompt tokens of answered requests.", "tenant", "model"
        )
        self.cached_tokens = counter(
            "cached_tokens", "Prompt tokens that workers reported as cached.", "tenant", "model"
        )
        self.predicted_tokens = counter(
            "predicted_cached_tokens",
            "Cached prompt tokens that routing predicted, in answers that report cached tokens.",
            "tenant",
            "model",
        )
        self.cached_error = counter(
            "cached_tokens_error",
            "Absolute differences between predicted and reported cached tokens, summed over answers.",
            "tenant",
            "model",
        )
        self.output_tokens = counter(
            "output_tokens", "Output tokens of requests that were sent to a worker.", "tenant", "model"
        )
        self.worker_requests = counter("worker_requests", "Requests answered by the worker.", "worker")
        self.worker_prefills = counter(
            "worker_prefills",
            "Prompts that the worker computed as the prefill half of a pair, for an answer by another worker.",
            "worker",
        )
        self.worker_prompt_tokens = counter(
            "worker_prompt_tokens", "Prompt tokens of answered requests, by worker.", "worker"
        )
        self.worker_cached_tokens = counter(
            "worker_cached_tokens", "Prompt tokens that the worker reported as cached.", "worker"
        )
        self.worker_predicted_tokens = counter(
            "worker_predicted_cached_tokens",
            "Cached prompt tokens that routing predicted on the worker, in answers that report cached tokens.",
            "worker",
        )
        self.worker_cached_error = counter(
            "worker_cached_tokens_error",
            "Absolute differences between predicted and reported cached tokens, summed over the worker's answers.",
            "worker",
        )
        self.worker_ttft = counter(
            "worker_ttft_seconds",
            "Seconds from dispatch to the worker's first token, summed over streams.",
            "worker",
        )
        self.worker_predicted_ttft = counter(
            "worker_predicted_ttft_seconds",
            "Seconds that the latency model predicted from dispatch to the first token, summed over streams.",
            "worker",
        )
        self.worker_ttft_error = counter(
            "worker_ttft_error_seconds",
            "Absolute differences in seconds between predicted and measured time to first token, summed.",
            "worker",
        )
        self.duration = histogram(
            "request_duration_seconds",
            "Seconds from a request's arrival to its end, for requests that were sent to a worker.",
            DURATION_BUCKETS,
            "tenant",
            "model",
        )
        self.ttft = histogram(
            "time_to_first_token_seconds",
            "Seconds from a request's arrival to the first output byte handed to the client's socket, of streams.",
            TTFT_BUCKETS,
            "tenant",
            "model",
        )
        self.tpot = histogram(
            "time_per_output_token_seconds",
            "Seconds between output tokens, of streams: (last - first output byte) / (output tokens - 1).",
            TPOT_BUCKETS,
            "tenant",
            "model",
        )
        self.queue = histogram(
            "queue_duration_seconds",
            "Seconds in the waiting room, of requests that waited.",
            DURATION_BUCKETS,
            "tenant",
            "model",
        )
        self.dispatch = histogram(
            "dispatch_duration_seconds",
            "Seconds from arrival to dispatch without the time in the waiting room: the gateway's own work.",
            DISPATCH_BUCKETS,
            "model",
        )
        self.decided = counter(
            "routing_requests",
            "Answered streams, by the policy that chose the worker (`policy` or `shadow`).",
            "by",
        )
        self.decided_ttft = counter(
            "routing_ttft_seconds",
            "Seconds from dispatch to the first token, summed over streams, by the policy that chose the worker.",
            "by",
        )
        self.decided_uncached = counter(
            "routing_uncached_tokens",
            "Uncached prompt tokens that workers reported for streams, by the policy that chose the worker.",
            "by",
        )
        self.class_requests = counter(
            "class_requests",
            "Finished requests by service class and outcome: target for the first token `met` or `missed`, "
            "`turned_away` by the queue, `left` by the client before the first token, `failed`, or `unknown` if "
            "the answer was not streamed.",
            "class",
            "outcome",
        )
        self.class_ttft = histogram(
            "class_time_to_first_token_seconds",
            "Seconds from arrival to a worker's first token, by service class; also of answers that the gateway "
            "assembled from a stream.",
            TTFT_BUCKETS,
            "class",
        )
        self._children: dict[tuple[str, str], _TenantModel] = {}
        self._outcomes: dict[tuple[str, str, str], Counter] = {}
        self._workers: dict[str, _Worker] = {}
        self._classes: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self._deciders: dict[str, tuple[Counter, Counter, Counter]] = {}
        self._pairs: set[tuple[str, str]] = set()

    def observe(self, record: RequestRecord) -> None:
        """Count one finished request."""
        model = record.model or UNKNOWN_LABEL
        tenant = self._tenant_label(record.tenant or UNKNOWN_LABEL, model)
        outcome = self._outcomes.get((tenant, model, record.code))
        if outcome is None:
            outcome = self.requests.labels(tenant, model, record.code)
            self._outcomes[tenant, model, record.code] = outcome
        outcome.inc()
        if record.service_class:
            requests, first_token = self._class(record.service_class, class_outcome(record))
            requests.inc()
            if record.first_token_seconds is not None:
                first_token.observe(record.first_token_seconds)
        if record.worker is None:
            return
        child = self._children.get((tenant, model))
        if child is None:
            child = self._children[tenant, model] = _TenantModel(self, tenant, model)
        child.duration.observe(record.seconds)
        if record.queue_seconds is not None:
            child.queue.observe(record.queue_seconds)
        if record.dispatch_seconds is not None:
            child.dispatch.observe(record.dispatch_seconds)
        if record.ttft_seconds is not None:
            child.ttft.observe(record.ttft_seconds)
        if record.tpot_seconds is not None:
            child.tpot.observe(record.tpot_seconds)
        child.output_tokens.inc(record.output_tokens)
        if record.answered:
            child.prompt_tokens.inc(record.prompt_tokens)
            self._worker(record.worker).requests.inc()
            # Figures of a prompt are counted for the worker that computed the prompt.
            worker = self._worker(record.prefill_worker or record.worker)
            if record.prefill_worker is not None:
                worker.prefills.inc()
            worker.prompt_tokens.inc(record.prompt_tokens)
            measured, expected = record.worker_ttft_seconds, record.predicted_ttft_seconds
            if measured is not None and expected is not None:
                worker.ttft.inc(measured)
                worker.predicted_ttft.inc(expected)
                worker.ttft_error.inc(abs(expected - measured))
                decided, ttft, uncached = self._decider(SHADOW if record.by_shadow else POLICY)
                decided.inc()
                ttft.inc(measured)
                if record.cached_tokens is not None:
                    uncached.inc(record.prompt_tokens - record.cached_tokens)
            if record.cached_tokens is not None:
                # Not reported is not zero.
                error = abs(record.predicted_tokens - record.cached_tokens)
                for of in (child, worker):
                    of.cached_tokens.inc(record.cached_tokens)
                    of.predicted_tokens.inc(record.predicted_tokens)
                    of.cached_error.inc(error)

    def _class(self, name: str, outcome: str) -> tuple[Counter, Histogram]:
        found = self._classes.get((name, outcome))
        if found is None:
            found = self.class_requests.labels(name, outcome), self.class_ttft.labels(name)
            self._classes[name, outcome] = found
        return found

    def _decider(self, by: str) -> tuple[Counter, Counter, Counter]:
        found = self._deciders.get(by)
        if found is None:
            found = self.decided.labels(by), self.decided_ttft.labels(by), self.decided_uncached.labels(by)
            self._deciders[by] = found
        return found

    def _worker(self, name: str) -> "_Worker":
        worker = self._workers.get(name)
        if worker is None:
            worker = self._workers[name] = _Worker(self, name)
        return worker

    def _tenant_label(self, tenant: str, model: str) -> str:
        if (tenant, model) not in self._pairs:
            if len(self._pairs) >= PAIRS_MAX:
                return OTHER_TENANTS
            self._pairs.add((tenant, model))
        return tenant


def class_outcome(record: RequestRecord) -> str:
    """Return the outcome of a request for the target of its service class, as a label value."""
    first, target = record.first_token_seconds, record.ttft_target_seconds
    if first is not None and target is not None:
        return "met" if first <= target else "missed"
    if record.code in TURNED_AWAY_CODES:
        return "turned_away"
    if record.code == CLIENT_CLOSED:
        return "left"
    return "unknown" if record.code == OK else "failed"


class _TenantModel:
    """The metric children of one tenant and model."""

    def __init__(self, of: RequestMetrics, tenant: str, model: str) -> None:
        self.duration = of.duration.labels(tenant, model)
        self.queue = of.queue.labels(tenant, model)
        self.dispatch = of.dispatch.labels(model)
        self.ttft = of.ttft.labels(tenant, model)
        self.tpot = of.tpot.labels(tenant, model)
        self.prompt_tokens = of.prompt_tokens.labels(tenant, model)
        self.cached_tokens = of.cached_tokens.labels(tenant, model)
        self.predicted_tokens = of.predicted_tokens.labels(tenant, model)
        self.cached_error = of.cached_error.labels(tenant, model)
        self.output_tokens = of.output_tokens.labels(tenant, model)


class _Worker:
    """The metric children of one worker."""

    def __init__(self, of: RequestMetrics, worker: str) -> None:
        self.requests = of.worker_requests.labels(worker)
        self.prefills = of.worker_prefills.labels(worker)
        self.prompt_tokens = of.worker_prompt_tokens.labels(worker)
        self.cached_tokens = of.worker_cached_tokens.labels(worker)
        self.predicted_tokens = of.worker_predicted_tokens.labels(worker)
        self.cached_error = of.worker_cached_error.labels(worker)
        self.ttft = of.worker_ttft.labels(worker)
        self.predicted_ttft = of.worker_predicted_ttft.labels(worker)
        self.ttft_error = of.worker_ttft_error.labels(worker)
