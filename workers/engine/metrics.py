"""The metrics of an engine since its start; the server gives them their Prometheus names and format.

    arrival ---- queue ----> started ---- prefill ----> first token -- ITL -- ... -- ITL --> last token
       |-------------------- TTFT ---------------------------|
       |-------------------- e2e ------------------------------------------------------------------|
                                 TPOT = (last - first) / (output tokens - 1)

Every token position that went through the model is work. This part of the work is wasted:

    cancelled    first computed for a request that was then aborted
    rejected     drafts that the model did not accept
    recomputed   computed before, and lost to a preemption (or never stored: no KV cache)
    padding      rows of a static batch that belong to no sequence

Goodput counts requests that met all objectives (DistServe, OSDI 2024, arXiv 2401.09670), and per unit of compute
their tokens over all work. The engine's thread writes the metrics; another thread may read a step half counted.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workers.engine.scheduler.counters import SpecCounters
from workers.engine.scheduler.plan import SampledTokens, StepItem, StepPlan
from workers.engine.scheduler.sequence import FinishReason
from workers.engine.scheduler.sequence import Sequence as Running


def _bounds(written: str) -> tuple[float, ...]:
    return tuple(float(number) for number in written.split())


# vLLM's bounds, so that histograms of both can be added up, and a few below vLLM's smallest.
LATENCY_BOUNDS = _bounds(
    "0.001 0.003 0.01 0.03 0.1 0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
)
TTFT_BOUNDS = _bounds(
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
)
ITL_BOUNDS = _bounds(
    "0.001 0.0025 0.005 0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
)
STEP_TOKENS_BOUNDS = _bounds("1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384")
PREEMPTIONS_BOUNDS = _bounds("1 2 3 4 5 10 20")
TOKENS_BOUNDS = _bounds("1 2 5 10 20 50 100 200 500 1000 2000 5000 10000 20000 50000 100000")

RATE_TOKENS_MIN = 16
"""Steps with fewer prefill tokens are not used to measure the time of a prefill token."""
_RATE_SHARE = 0.2
"""The weight of the newest step in the moving average of that time."""


class Histogram:
    """A histogram: counts of observations by upper bound, the last count being of those above every bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation; a value equal to a bound counts below it, as in Prometheus."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)

    def merged_with(self, other: "Histogram") -> "Histogram":
        """Return the sum of two histograms with the same bounds."""
        both = Histogram(self.bounds)
        both.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        both.sum = self.sum + other.sum
        return both


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputObjectives:
    """The latencies that a request must not exceed to count for the goodput; radixgate's defaults."""

    ttft_seconds: float = 2.0
    tpot_seconds: float = 0.06


@dataclass(slots=True)
class WorkCounts:
    """The number of token positions computed, and of those that were wasted, by the reasons named in the module."""

    computed: int = 0
    """All token positions, the wasted ones included."""
    cancelled: int = 0
    rejected: int = 0
    recomputed: int = 0
    padding: int = 0

    @property
    def wasted(self) -> int:
        """The number of wasted token positions."""
        return self.cancelled + self.rejected + self.recomputed + self.padding

    def share(self, tokens: int) -> float:
        """Return `tokens` as a share of all work; 0 before there is any."""
        return tokens / self.computed if self.computed else 0.0


class RequestCounts:
    """The counts and latencies of the streamed requests, or of the others."""

    def __init__(self) -> None:
        self.requests = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.ttft = Histogram(TTFT_BOUNDS)
        """Seconds from the arrival to the first token."""
        self.tpot = Histogram(ITL_BOUNDS)
        """Seconds for each output token after the first one, one observation for each request."""
        self.e2e = Histogram(LATENCY_BOUNDS)
        """Seconds from the arrival to the end of the request."""


class EngineMetrics:
    """The metrics of one engine since its start."""

    def __init__(
        self, objectives: GoodputObjectives | None = None, speculation: SpecCounters | None = None
    ) -> None:
        self.speculation = speculation or SpecCounters()
        self.objectives = objectives or GoodputObjectives()
        self.by_streaming = {True: RequestCounts(), False: RequestCounts()}
        """The counts of streamed requests (True) and of the others (False)."""
        self.itl = Histogram(ITL_BOUNDS)
        """Seconds between two steps that each gave a request tokens."""
        self.queue = Histogram(LATENCY_BOUNDS)
        """Seconds from the arrival to the first step that computed part of the request."""
        self.prefill = Histogram(LATENCY_BOUNDS)
        """Seconds from the beginning of that step to the first token."""
        self.decode = Histogram(LATENCY_BOUNDS)
        """Seconds from the first token to the last."""
        self.inference = Histogram(LATENCY_BOUNDS)
        """Seconds of prefill and decode together."""
        self.step_tokens = Histogram(STEP_TOKENS_BOUNDS)
        """Token positions computed in a step, drafts and padding included."""
        self.prompt_lengths = Histogram(TOKENS_BOUNDS)
        """Prompt tokens of a request that has ended."""
        self.output_lengths = Histogram(TOKENS_BOUNDS)
        """Generated tokens of a request that has ended."""
        self.preemptions_each = Histogram(PREEMPTIONS_BOUNDS)
        """Preemptions of a request that has ended."""
        self.finished: Counter[FinishReason] = Counter()
        self.work = WorkCounts()
        self.steps = 0
        self.failed_steps = 0
        self.step_seconds = 0.0
        self.preemptions = 0
        self.queried_tokens = 0
        """Prompt tokens that were looked up in the prefix cache."""
        self.hit_tokens = 0
        """Prompt tokens that were found there."""
        self.prefill_tokens = 0
        """Token positions computed in prefills."""
        self.decode_tokens = 0
        """Token positions computed in decodes, drafts included."""
        self.good_requests = 0
        """Requests that met all objectives."""
        self.good_tokens = 0
        """Tokens of these requests: generated ones, and prompt tokens that were not cached."""
        self.seconds_per_token = 0.0
        """The moving average of the seconds that one token takes in a step with prefills."""

    def record_step(
        self, plan: StepPlan, sampled: Iterable[SampledTokens], began: float, ended: float
    ) -> None:
        """Count one computed and committed step, and set the times of its sequences."""
        self._count_work(plan, sampled)
        if plan.items:
            self.steps += 1
            self.step_seconds += ended - began
            self.step_tokens.observe(plan.num_tokens + sum(plan.padding))
            self._learn_rate(plan, ended - began)
        for item in plan.items:
            self._time(item, began, ended)

    def record_end(self, sequence: Running, now: float) -> None:
        """Count a request that has its finish reason."""
        self.finished[sequence.finish or FinishReason.ABORT] += 1
        if sequence.finish and sequence.finish.early:
            self.work.cancelled += max(0, sequence.computed_max - (sequence.cached_tokens or 0))
        figures = self.by_streaming[sequence.streamed]
        figures.requests += 1
        figures.e2e.observe(now - sequence.arrival)
        self.preemptions_each.observe(sequence.times.preemptions)
        self.prompt_lengths.observe(sequence.num_prompt)
        self.output_lengths.observe(sequence.num_generated)
        moments = sequence.times
        if moments.started is None or moments.first_token is None or moments.last_token is None:
            return
        decode = moments.last_token - moments.first_token
        tpot = decode / (sequence.num_generated - 1) if sequence.num_generated > 1 else 0.0
        self.prefill.observe(moments.first_token - moments.started)
        self.decode.observe(decode)
        self.inference.observe(moments.last_token - moments.started)
        if sequence.num_generated > 1:
            figures.tpot.observe(tpot)
        if sequence.finish and not sequence.finish.early:
            self._judge(sequence, moments.first_token - sequence.arrival, tpot)

    def _judge(self, sequence: Running, ttft: float, tpot: float) -> None:
        if ttft <= self.objectives.ttft_seconds and tpot <= self.objectives.tpot_seconds:
            self.good_requests += 1
            self.good_tokens += sequence.num_prompt - (sequence.cached_tokens or 0) + sequence.num_generated

    def _count_work(self, plan: StepPlan, sampled: Iterable[SampledTokens]) -> None:
        work = self.work
        work.computed += plan.num_tokens + sum(plan.padding)
        work.padding += sum(plan.padding)
        work.recomputed += sum(item.recomputed for item in plan.items)
        for item, result in zip((item for item in plan.items if item.samples), sampled, strict=True):
            work.rejected += item.drafts - (len(result.tokens) - 1 if item.drafts else 0)
        self.preemptions += len(plan.preempted)
        for sequence in plan.preempted:
            sequence.times.preemptions += 1

    def _time(self, item: StepItem, began: float, ended: float) -> None:
        sequence, moments = item.sequence, item.sequence.times
        figures = self.by_streaming[sequence.streamed]
        if moments.started is None:
            moments.started = began
            self.queue.observe(began - sequence.arrival)
            figures.prompt_tokens += sequence.num_prompt
            self.queried_tokens += sequence.num_prompt
            self.hit_tokens += sequence.cached_tokens or 0
        if not item.samples:
            self.prefill_tokens += item.count
            return
        if moments.first_token is None:
            self.prefill_tokens += item.count
            moments.first_token = ended
            figures.ttft.observe(ended - sequence.arrival)
        else:
            self.decode_tokens += item.count
        if moments.last_token is not None:
            self.itl.observe(ended - moments.last_token)
        moments.last_token = ended

    def record_handoff(self, sequence: Running, now: float) -> None:
        """Count a request with a prompt and a first token that another engine computed."""
        moments = sequence.times
        moments.started = moments.first_token = moments.last_token = now
        figures = self.by_streaming[sequence.streamed]
        figures.prompt_tokens += sequence.num_prompt
        figures.ttft.observe(now - sequence.arrival)

    def record_generated(self, sequence: Running, tokens: int) -> None:
        """Count tokens that were added to an answer."""
        self.by_streaming[sequence.streamed].generated_tokens += tokens

    def _learn_rate(self, plan: StepPlan, seconds: float) -> None:
        prefilled = sum(item.count for item in plan.items if item.count > 1 + item.drafts)
        if prefilled >= RATE_TOKENS_MIN:
            latest = seconds / plan.num_tokens
            old = self.seconds_per_token or latest
            self.seconds_per_token = old + _RATE_SHARE * (latest - old)
