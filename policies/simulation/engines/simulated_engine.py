"""A simulated engine: continuous batching, chunked prefill, and a block cache with LRU eviction.

`begin` plans a step, `finish` ends it; `_engine_ends` of simulation.py calls them when a step is over. One step
goes as in vLLM: every running stream gets a token, prompts under way get what the streams leave of the token
budget, in order of admission, and waiting requests are admitted while the step has budget left and their blocks
fit. So a request that waits finds the blocks that earlier steps have computed. A prompt of which the last chunk was
computed has its first token at the end of that step.

KV memory is counted as it is: a block that several streams read counts once in the time of a decode step.

Steps that only decode are all alike, so they are simulated as one run, up to the first stream that ends. A request
that arrives in between cuts the run at the end of the step under way:

    |--|--|--|--|--|--|--|--|        a run of eight steps, `ends_at` its end
             ^ a request arrives
    |--|--|--|--|                    the run is cut, and the request admitted here
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Protocol

from policies.simulation.engines.read_tokens import ReadTokens
from policies.simulation.engines.step_time import StepTime
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest
from policies.simulation.waiting_orders import ORDERS, WaitingOrder


class SimulatedCache(Protocol):
    """The KV memory that a simulated engine needs; BlockCache is the plain one."""

    evicted: list[int]
    """Ids of evicted blocks, until the caller takes them."""

    def match(self, blocks: Sequence[int]) -> int:
        """Return how many leading blocks are cached."""
        ...

    def acquire(self, blocks: Sequence[int], total: int) -> int | None:
        """Reserve `total` blocks for a sequence; return how many were cached, or None if it does not fit."""
        ...

    def publish(self, blocks: Sequence[int]) -> None:
        """Make computed private blocks of a sequence available to others."""
        ...

    def release(self, blocks: Sequence[int], private: int) -> None:
        """End a sequence with these published blocks and so many private ones."""
        ...

    def clear(self) -> None:
        """Drop everything: the worker has restarted."""
        ...


class SimulatedJob:
    """One request inside an engine, known to the caller by `number`."""

    __slots__ = ("arrived_at", "cached_tokens", "computed", "number", "private", "published", "request")

    def __init__(self, number: int, request: TraceRequest, arrived_at: float) -> None:
        self.number = number
        self.request = request
        self.arrived_at = arrived_at
        self.cached_tokens = 0
        self.computed = 0
        """Prompt tokens that need not be computed any more, cached ones included."""
        self.published = 0
        """Leading prompt blocks that others can share."""
        self.private = 0
        """Blocks of its own, not shared."""


class SimulatedEngine:
    """An engine that is driven by a simulation. Times are seconds.

    At `ends_at` the simulation calls `finish`, takes `first_tokens`, `finished`, `published` and the cache's
    evictions, and calls `begin`.
    """

    def __init__(
        self,
        *,
        cache: SimulatedCache,
        capacity_tokens: int,
        times: StepTime,
        order: WaitingOrder = ORDERS["fcfs"],
    ) -> None:
        self.cache = cache
        self.ends_at: float | None = None
        """When the step or run under way ends; None when idle."""
        self.busy_seconds = 0.0
        self.computed_tokens = 0
        self.first_tokens: list[SimulatedJob] = []
        self.finished: list[SimulatedJob] = []
        self.published: list[tuple[SimulatedJob, int]] = []
        self._capacity = capacity_tokens
        self._times = times
        self._order = order
        self._waiting: list[SimulatedJob] = []
        self._prefilling: list[SimulatedJob] = []
        self._ends: list[
            tuple[int, int, SimulatedJob]
        ] = []  # streams by the number of the step that ends them
        self._steps = 0
        self._kv_tokens = 0
        """Tokens that the running streams read: their answers so far, and each block of their prompts once."""
        self._read = ReadTokens()
        self._began_at = 0.0
        self._run = 0  # decode steps of the run under way
        self._chunks: list[tuple[SimulatedJob, int]] = []

    @property
    def jobs(self) -> list[SimulatedJob]:
        """All requests inside, streams last."""
        return [*self._waiting, *self._prefilling, *(job for _, _, job in self._ends)]

    def submit(self, job: SimulatedJob, now: float) -> None:
        """Take a request; `ends_at` may become earlier."""
        self._waiting.append(job)
        if self.ends_at is None:
            self.begin(now)
        elif not self._chunks and self._run > 1:
            self._cut(now)

    def begin(self, now: float) -> None:
        """Start the next step, or the next run of steps."""
        self._began_at = now
        streams = len(self._ends)
        self._chunks = self._budgeted(self._times.chunk_tokens - streams, now)
        if self._chunks:
            tokens = sum(chunk for _, chunk in self._chunks)
            self.computed_tokens += tokens
            took = self._times.prefill(tokens)
            if streams:
                took += self._times.decode(self._kv_tokens / self._capacity)
            self._run = 1
            self.ends_at = now + took / 1000
        elif streams:
            self._run = self._ends[0][0] - self._steps
            self.ends_at = now + self._duration(self._run)
        else:
            self.ends_at = None

    def finish(self, now: float) -> None:
        """End the step or the run under way."""
        self.busy_seconds += now - self._began_at
        self._steps += self._run
        self._kv_tokens += self._run * len(self._ends)
        while self._ends and self._ends[0][0] <= self._steps:
            self._end(heappop(self._ends)[2])
        for job, chunk in self._chunks:
            job.computed += chunk
            self._publish(job)
            if job.computed >= job.request.prompt_tokens:
                self._answer(job)
        self._chunks = []

    def soonest_ttft(self, request: TraceRequest, now: float) -> float:
        """Return the seconds to the first token of a request that came now, if no waiting one went before it.

        The step under way runs to its end, and prompts under way are computed first: no gateway can change that.
        """
        left = sum(job.request.prompt_tokens - job.computed for job in self._prefilling)
        left -= sum(chunk for _, chunk in self._chunks)
        cached = self.cache.match(request.blocks) * BLOCK_TOKENS
        left += request.prompt_tokens - min(cached, request.prompt_tokens - 1)
        whole, rest = divmod(left, self._times.chunk_tokens)
        steps = whole + (rest > 0)
        took = whole * self._times.prefill(self._times.chunk_tokens)
        took += self._times.prefill(rest) if rest else 0.0
        if self._ends:
            took += steps * self._times.decode(self._kv_tokens / self._capacity)
        under_way = self.ends_at - now if self._chunks and self.ends_at is not None else 0.0
        return under_way + took / 1000

    def stop(self) -> list[SimulatedJob]:
        """Kill the engine: return the requests inside, which are lost, and drop the cache."""
        lost = self.jobs
        self._waiting, self._prefilling, self._ends, self._chunks = [], [], [], []
        self._kv_tokens = 0
        self._read = ReadTokens()
        self.ends_at = None
        self.cache.clear()
        return lost

    def _budgeted(self, budget: int, now: float) -> list[tuple[SimulatedJob, int]]:
        """Return the prompts of the next step with the tokens that each gets of the budget; admits requests."""
        chunks: list[tuple[SimulatedJob, int]] = []
        for job in self._prefilling:
            if budget <= 0:
                return chunks
            chunk = min(budget, job.request.prompt_tokens - job.computed)
            chunks.append((job, chunk))
            budget -= chunk
        while budget > 0 and (admitted := self._admitted(now)) is not None:
            chunk = min(budget, admitted.request.prompt_tokens - admitted.computed)
            chunks.append((admitted, chunk))
            budget -= chunk
        return chunks

    def _admitted(self, now: float) -> SimulatedJob | None:
        """Admit the next waiting request; return None if there is none, or no room for it."""
        if not self._waiting or len(self._prefilling) + len(self._ends) >= self._times.sequences_max:
            return None
        at = self._next(now)
        job = self._waiting[at]
        request = job.request
        total = -(-(request.prompt_tokens + request.output_tokens) // BLOCK_TOKENS)
        held = self.cache.acquire(request.blocks, total)
        if held is None:
            return None
        del self._waiting[at]
        job.published = held
        job.private = total - held
        # The last token is always computed: it brings the first one of the answer.
        job.cached_tokens = min(held * BLOCK_TOKENS, request.prompt_tokens - 1)
        job.computed = job.cached_tokens
        self._prefilling.append(job)
        return job

    def _next(self, now: float) -> int:
        if self._order is ORDERS["fcfs"] or len(self._waiting) == 1:
            return 0
        order, match = self._order, self.cache.match

        def rank(at: int) -> float:
            job = self._waiting[at]
            uncached = job.request.prompt_tokens - match(job.request.blocks) * BLOCK_TOKENS
            return order(now - job.arrived_at, uncached, job.arrived_at)

        return min(range(len(self._waiting)), key=rank)

    def _publish(self, job: SimulatedJob) -> None:
        """Publish the blocks that are complete, and the last, partial one once the prompt is complete."""
        blocks = job.request.blocks
        done = job.computed >= job.request.prompt_tokens
        whole = len(blocks) if done else job.computed // BLOCK_TOKENS
        if whole > job.published:
            self.cache.publish(blocks[job.published : whole])
            job.private -= whole - job.published
            job.published = whole
            self.published.append((job, whole))

    def _answer(self, job: SimulatedJob) -> None:
        self._prefilling.remove(job)
        self.first_tokens.append(job)
        if job.request.output_tokens == 1:
            self._release(job)
            return
        self._kv_tokens += 1 + self._read.begin(job.number, job.request)
        heappush(self._ends, (self._steps + job.request.output_tokens - 1, job.number, job))

    def _end(self, job: SimulatedJob) -> None:
        self._kv_tokens -= self._read.end(job.number, job.request) + job.request.output_tokens
        self._release(job)

    def _release(self, job: SimulatedJob) -> None:
        self.cache.release(job.request.blocks[: job.published], job.private)
        self.finished.append(job)

    def _cut(self, now: float) -> None:
        """End the run with the step that is under way now."""
        elapsed = now - self._began_at
        low, high = 1, self._run
        while low < high:
            middle = (low + high) // 2
            if self._duration(middle) >= elapsed:
                high = middle
            else:
                low = middle + 1
        self._run = low
        self.ends_at = self._began_at + self._duration(low)

    def _duration(self, steps: int) -> float:
        return self._times.decode_run(steps, self._kv_tokens, len(self._ends), self._capacity) / 1000
