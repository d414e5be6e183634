"""Runs the traffic on one engine, no request before its arrival, and measures the engine."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from workers.engine.ablation.kv_waste import measure_kv_waste
from workers.engine.ablation.traffic import Arrival
from workers.engine.engine import Engine
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderResult:
    """The measurements of one rung. Times are in seconds, memory is in tokens, shares are from 0 to 1."""

    seconds: float
    """Time from the first arrival to the last token."""
    cpu_seconds: float
    """CPU time of the whole process; other processes on the machine disturb it less."""
    output_tokens: int
    steps: int
    ttft: Sequence[float] = field(repr=False)
    """Time to first token, one entry for each request."""
    itl: Sequence[float] = field(repr=False)
    """Inter-token latency: every gap between two outputs of a request."""
    rows: float
    """Sequences that advanced in a step, on average: how full the batch was."""
    kv_tokens_max: int
    """The most tokens that the KV pool held for requests at one moment."""
    kv_lost: float
    """The share of the occupied KV memory that held no token, on average over the steps."""
    computed: int
    """Token positions that the model computed."""
    wasted: dict[str, int]
    """Computed token positions with an unused result, by reason."""
    cached_tokens: int
    """Prompt tokens read from the prefix cache."""
    accepted_length: float
    """Tokens that one verification of drafts yields on average."""
    preemptions: int
    tokens: tuple[tuple[int, ...], ...] = field(repr=False)
    """The tokens of every answer, in the order of the requests."""

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second over the whole time."""
        return self.output_tokens / self.seconds

    @property
    def useful(self) -> float:
        """The share of the computed token positions with a result that was used."""
        return 1 - sum(self.wasted.values()) / self.computed

    def percentile(self, times: Sequence[float], share: float) -> float:
        """Return a percentile of times, in seconds; `share` is from 0 to 1. The result is 0 without times."""
        return float(np.percentile(times, share * 100)) if len(times) else 0.0


@dataclass
class _Recording:
    """Everything that is recorded while the engine runs."""

    tokens: list[list[int]]
    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    lost_shares: list[float] = field(default_factory=list)
    last_output: dict[int, float] = field(default_factory=dict)
    kv_tokens_max: int = 0
    rows: int = 0


def measure_engine(
    engine: Engine, arrivals: Sequence[Arrival], clock: Callable[[], float] = time.perf_counter
) -> LadderResult:
    """Submit each request at its arrival, and step until all are answered.

    Sampling is greedy, so that the answers of all rungs can be compared.
    """
    recording = _Recording(tokens=[[] for _ in arrivals])
    start, cpu, submitted = clock(), time.process_time(), 0
    while submitted < len(arrivals) or engine.has_work:
        now = clock() - start
        while submitted < len(arrivals) and arrivals[submitted].at_seconds <= now:
            engine.submit(_request(submitted, arrivals[submitted]))
            submitted += 1
        if not engine.has_work:
            time.sleep(max(0.0, arrivals[submitted].at_seconds - now))
            continue
        _step(engine, arrivals, recording, lambda: clock() - start)
    seconds, cpu = clock() - start, time.process_time() - cpu
    counts, work = engine.metrics, engine.metrics.work
    return LadderResult(
        seconds=seconds,
        cpu_seconds=cpu,
        output_tokens=sum(map(len, recording.tokens)),
        steps=counts.steps,
        ttft=recording.ttft,
        itl=recording.itl,
        rows=recording.rows / counts.steps,
        kv_tokens_max=recording.kv_tokens_max,
        kv_lost=float(np.mean(recording.lost_shares)) if recording.lost_shares else 0.0,
        computed=work.computed,
        wasted={
            "recomputed": work.recomputed,
            "padding": work.padding,
            "rejected": work.rejected,
            "cancelled": work.cancelled,
        },
        cached_tokens=counts.hit_tokens,
        accepted_length=counts.speculation.accepted_length,
        preemptions=counts.preemptions,
        tokens=tuple(map(tuple, recording.tokens)),
    )


def _request(number: int, arrival: Arrival) -> Request:
    params = SamplingParams(max_tokens=arrival.max_tokens, temperature=0.0, ignore_eos=True)
    return Request(id=str(number), prompt=arrival.prompt, params=params)


def _step(
    engine: Engine, arrivals: Sequence[Arrival], recording: _Recording, now: Callable[[], float]
) -> None:
    outputs = engine.step()
    moment = now()
    for output in outputs:
        number = int(output.id)
        recording.tokens[number] += output.tokens
        if number in recording.last_output:
            recording.itl.append(moment - recording.last_output[number])
        else:
            recording.ttft.append(moment - arrivals[number].at_seconds)
        recording.last_output[number] = moment
    pool, loads = engine.tree.pool, engine.loads()
    recording.rows += len(outputs)
    recording.kv_tokens_max = max(recording.kv_tokens_max, loads.used_tokens)
    if loads.used_tokens:
        recording.lost_shares.append(measure_kv_waste(engine.scheduler, pool).lost_share)
