"""Runs one engine through the traffic, as fast as it can but nobody before its time, and measures."""

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
    """What one rung did with the traffic. Times in seconds, memory in tokens, shares in 0 to 1."""

    seconds: float
    """From the first arrival to the last token."""
    cpu_seconds: float
    """Of the whole process; less disturbed by others on the machine."""
    output_tokens: int
    steps: int
    ttft: Sequence[float] = field(repr=False)
    itl: Sequence[float] = field(repr=False)
    rows: float
    """Sequences that a step computed something for, on average: how full the batch was."""
    kv_tokens_max: int
    """The most that the KV pool had to hold for requests at one moment."""
    kv_lost: float
    """Of the KV memory that was taken, the share that held no token, on average over the steps."""
    computed: int
    wasted: dict[str, int]
    cached_tokens: int
    accepted_length: float
    preemptions: int
    tokens: tuple[tuple[int, ...], ...] = field(repr=False)
    """Every answer, in the order of the requests."""

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the whole time."""
        return self.output_tokens / self.seconds

    @property
    def useful(self) -> float:
        """Of all token positions that were computed, the share that somebody needed."""
        return 1 - sum(self.wasted.values()) / self.computed

    def percentile(self, of: Sequence[float], share: float) -> float:
        """Of times, in seconds; 0 when there are none."""
        return float(np.percentile(of, share * 100)) if len(of) else 0.0


@dataclass
class _Watch:
    """Everything that is noted while the engine runs."""

    tokens: list[list[int]]
    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    last: dict[int, float] = field(default_factory=dict)
    kv_tokens_max: int = 0
    rows: int = 0


def climb(
    engine: Engine, arrivals: Sequence[Arrival], clock: Callable[[], float] = time.perf_counter
) -> LadderResult:
    """Submit each request in its time, step until all are answered; greedy, so that rungs can be compared."""
    watch = _Watch(tokens=[[] for _ in arrivals])
    start, cpu, submitted = clock(), time.process_time(), 0
    while submitted < len(arrivals) or engine.has_work:
        now = clock() - start
        while submitted < len(arrivals) and arrivals[submitted].at <= now:
            engine.submit(_request(submitted, arrivals[submitted]))
            submitted += 1
        if not engine.has_work:
            time.sleep(max(0.0, arrivals[submitted].at - now))
            continue
        _step(engine, arrivals, watch, lambda: clock() - start)
    seconds, cpu = clock() - start, time.process_time() - cpu
    counts, work = engine.metrics, engine.metrics.work
    return LadderResult(
        seconds=seconds,
        cpu_seconds=cpu,
        output_tokens=sum(map(len, watch.tokens)),
        steps=counts.steps,
        ttft=watch.ttft,
        itl=watch.itl,
        rows=watch.rows / counts.steps,
        kv_tokens_max=watch.kv_tokens_max,
        kv_lost=float(np.mean(watch.lost)) if watch.lost else 0.0,
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
        tokens=tuple(map(tuple, watch.tokens)),
    )


def _request(number: int, arrival: Arrival) -> Request:
    params = SamplingParams(max_tokens=arrival.max_tokens, temperature=0.0, ignore_eos=True)
    return Request(id=str(number), prompt=arrival.prompt, params=params)


def _step(engine: Engine, arrivals: Sequence[Arrival], watch: _Watch, now: Callable[[], float]) -> None:
    outputs = engine.step()
    moment = now()
    for output in outputs:
        number = int(output.id)
        watch.tokens[number] += output.tokens
        if number in watch.last:
            watch.itl.append(moment - watch.last[number])
        else:
            watch.ttft.append(moment - arrivals[number].at)
        watch.last[number] = moment
    pool, loads = engine.tree.pool, engine.loads()
    watch.rows += len(outputs)
    watch.kv_tokens_max = max(watch.kv_tokens_max, loads.used_tokens)
    if loads.used_tokens:
        watch.lost.append(measure_kv_waste(engine.scheduler, pool).lost_share)
