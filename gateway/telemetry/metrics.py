"""Counters of finished requests in plain Python numbers; counting a request makes no call to prometheus_client.

gateway/telemetry/request_families.py names and explains the metrics, and reads these counters at a scrape. Gauges
of the present state are in gateway/wiring/gauges.py. Labels are bounded: models are those of the catalogue, codes
those of gateway/domain/errors.py, tenants are labelled by name until there are `pairs_max` pairs of tenant and
model, and a worker's counters are dropped when it has left the fleet (gateway/wiring/counters_follow_fleet.py).
A pair has counters only: histograms are kept by service class and model, and by tenant only where the settings
enable that, since each of them is some 18 lines of every scrape.
"""

from collections import defaultdict
from collections.abc import Set as AbstractSet

from gateway.telemetry.histogram import HistogramCounters
from gateway.telemetry.request_record import CLIENT_CLOSED, OK, OTHER_TENANTS, RequestRecord

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
"""The label value of unknown things: the tenant of an invalid key, the model of a malformed request."""

PAIRS_MAX = 4096
"""How many pairs of tenant and model have series of their own, by default.

Each pair takes half a kilobyte, and some eight lines of every scrape; later tenants are counted together.
"""

TURNED_AWAY_CODES = frozenset(
    {"admission_timeout", "deadline_exceeded", "overloaded", "target_missed", "too_many_waiting"}
)
"""The error codes of requests that the queue turned away."""

POLICY, SHADOW = "policy", "shadow"

Pair = tuple[str, str]
"""The labels `tenant` and `model`."""


class CachedTokenCounters:
    """Sums over answers: prompt tokens, and how many of the prompt tokens were cached."""

    __slots__ = ("cached_error", "cached_tokens", "predicted_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0  # as workers reported
        self.predicted_tokens = (
            0  # cached tokens that routing predicted, in answers that report cached tokens
        )
        self.cached_error = 0  # absolute differences between the two


class PairCounters(CachedTokenCounters):
    """Sums over the requests of one tenant for one model that were sent to a worker."""

    __slots__ = ("output_tokens",)

    def __init__(self) -> None:
        super().__init__()
        self.output_tokens = 0


class RequestHistograms:
    """Times in seconds of the requests of one service class for one model, of all tenants or of one."""

    __slots__ = ("dispatch", "duration", "queue", "tpot", "ttft")

    def __init__(self, dispatch: HistogramCounters) -> None:
        self.dispatch = dispatch  # of the model: all of its service classes share one histogram
        self.duration = HistogramCounters(DURATION_BUCKETS)
        self.queue = HistogramCounters(DURATION_BUCKETS)
        self.tpot = HistogramCounters(TPOT_BUCKETS)
        self.ttft = HistogramCounters(TTFT_BUCKETS)


class WorkerCounters(CachedTokenCounters):
    """Sums over the requests that one worker answered or computed the prompt of; times are in seconds."""

    __slots__ = ("predicted_ttft", "prefills", "requests", "ttft_error", "usage_impossible", "worker_ttft")

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0  # that it answered
        self.usage_impossible = 0  # its answers with impossible token counts
        self.prefills = 0  # prompts that it computed for an answer by another worker
        self.worker_ttft = 0.0  # from dispatch to the first token, of streams
        self.predicted_ttft = 0.0  # what the latency model predicted for `worker_ttft`
        self.ttft_error = 0.0  # absolute differences between the two


class RoutingCounters:
    """Sums over the streams with a worker that one policy chose."""

    __slots__ = ("requests", "uncached_tokens", "worker_ttft")

    def __init__(self) -> None:
        self.requests = 0
        self.worker_ttft = 0.0  # seconds from dispatch to the first token
        self.uncached_tokens = 0


class RequestMetrics:
    """An observer that counts finished requests, by the labels of each metric."""

    def __init__(self, *, pairs_max: int = PAIRS_MAX, tenant_histograms: bool = False) -> None:
        """`pairs_max`: pairs of tenant and model with series of their own.

        `tenant_histograms`: whether histograms are kept for each tenant.
        """
        self.tenant_histograms = tenant_histograms
        self._pairs_max = pairs_max
        self.outcomes: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        """Finished requests by tenant, model and error code."""

        self.pairs: dict[Pair, PairCounters] = {}
        self.histograms: dict[tuple[str, ...], RequestHistograms] = {}
        """By service class and model; with `tenant_histograms` by tenant, service class and model."""

        self.dispatch = _histograms(DISPATCH_BUCKETS)
        """Seconds from arrival to dispatch without the time in the waiting room, by model."""

        self.workers: defaultdict[str, WorkerCounters] = defaultdict(WorkerCounters)
        self.policies: defaultdict[str, RoutingCounters] = defaultdict(RoutingCounters)
        """By the policy that chose the worker: POLICY or SHADOW."""

        self.class_outcomes: defaultdict[tuple[str, str], int] = defaultdict(int)
        """Finished requests by service class and outcome."""

        self.class_first_token = _histograms(TTFT_BUCKETS)
        """Seconds from arrival to a worker's first token, by service class."""

        self._named: set[Pair] = set()  # pairs that are labelled with the name of their tenant

    def observe(self, record: RequestRecord) -> None:
        """Count one finished request."""
        pair = (record.tenant or UNKNOWN_LABEL, record.model or UNKNOWN_LABEL)
        if pair not in self._named:
            pair = self._label(pair)
        self.outcomes[*pair, record.code] += 1
        if record.service_class:
            self.class_outcomes[record.service_class, class_outcome(record)] += 1
            first_token = self.class_first_token[record.service_class]
            if record.first_token_seconds is not None:
                first_token.observe(record.first_token_seconds)
        if record.worker is None:
            return
        counters = self.pairs.get(pair)
        if counters is None:
            counters = self.pairs[pair] = PairCounters()
        counters.output_tokens += record.output_tokens
        labels: tuple[str, ...] = (record.service_class or UNKNOWN_LABEL, pair[1])
        if self.tenant_histograms:
            labels = (pair[0], *labels)
        times = self.histograms.get(labels)
        if times is None:
            times = self.histograms[labels] = RequestHistograms(self.dispatch[pair[1]])
        times.duration.observe(record.seconds)
        if record.queue_seconds is not None:
            times.queue.observe(record.queue_seconds)
        if record.dispatch_seconds is not None:
            times.dispatch.observe(record.dispatch_seconds)
        if record.ttft_seconds is not None:
            times.ttft.observe(record.ttft_seconds)
        if record.tpot_seconds is not None:
            times.tpot.observe(record.tpot_seconds)
        if record.trace is not None and record.trace.sampled:
            self._name_trace(record, times)
        if record.answered:
            self._count_answer(record, record.worker, counters)

    def keep_workers(self, present: AbstractSet[str]) -> None:
        """Drop the counters of all workers but these, which are in the fleet."""
        for worker in self.workers.keys() - present:
            del self.workers[worker]

    def _count_answer(self, record: RequestRecord, worker: str, pair: PairCounters) -> None:
        """Count the figures of a request that a worker has answered."""
        answering = self.workers[worker]
        answering.requests += 1
        answering.usage_impossible += record.usage_impossible
        # Numbers of a prompt are counted for the worker that computed the prompt.
        prefill = self.workers[record.prefill_worker or worker]
        if record.prefill_worker is not None:
            prefill.prefills += 1
        pair.prompt_tokens += record.prompt_tokens
        prefill.prompt_tokens += record.prompt_tokens
        cached, predicted = record.cached_tokens, record.predicted_tokens
        measured, expected = record.worker_ttft_seconds, record.predicted_ttft_seconds
        if measured is not None and expected is not None:
            prefill.worker_ttft += measured
            prefill.predicted_ttft += expected
            prefill.ttft_error += abs(expected - measured)
            policy = self.policies[SHADOW if record.by_shadow else POLICY]
            policy.requests += 1
            policy.worker_ttft += measured
            if cached is not None:
                policy.uncached_tokens += record.prompt_tokens - cached
        if cached is not None:
            # Only for reported counts; a missing count is not zero.
            error = abs(predicted - cached)
            for counters in (pair, prefill):
                counters.cached_tokens += cached
                counters.predicted_tokens += predicted
                counters.cached_error += error

    @staticmethod
    def _name_trace(record: RequestRecord, times: RequestHistograms) -> None:
        """Add the trace of this request to the histograms as an exemplar."""
        assert record.trace is not None
        trace_id, at = f"{record.trace.trace_id:032x}", record.started_at + record.seconds
        times.duration.exemplify(record.seconds, trace_id, at)
        if record.ttft_seconds is not None:
            times.ttft.exemplify(record.ttft_seconds, trace_id, at)
        if record.queue_seconds is not None:
            times.queue.exemplify(record.queue_seconds, trace_id, at)

    def _label(self, pair: Pair) -> Pair:
        """Return the labels of a pair that has no series yet: its own, or the model with all further tenants.

        The bound holds for tenants alone: a catalogue has few models, and each keeps its own name.
        """
        if len(self._named) >= self._pairs_max:
            return OTHER_TENANTS, pair[1]
        self._named.add(pair)
        return pair


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


def _histograms(bounds: tuple[float, ...]) -> defaultdict[str, HistogramCounters]:
    return defaultdict(lambda: HistogramCounters(bounds))
