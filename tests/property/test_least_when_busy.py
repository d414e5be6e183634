"""No gateway that keeps workers busy while requests wait passes the lower bound of the time to first token."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.simulation.engines.block_cache import BlockCache
from policies.simulation.engines.simulated_engine import SimulatedEngine, SimulatedJob
from policies.simulation.engines.step_time import StepTime
from policies.simulation.least_when_busy import least_ttft_when_busy
from policies.simulation.trace import BLOCK_TOKENS
from tests.property.test_least_ttft import traced

TIMES = st.sampled_from(
    [
        StepTime(chunk_tokens=512, sequences_max=30),
        StepTime(chunk_tokens=2048),
        StepTime(prefill_ms=(40, 0.02, 0), chunk_tokens=256, sequences_max=30),
    ]
)
REQUESTS = st.lists(
    st.tuples(
        st.floats(0, 0.4),
        st.lists(st.integers(0, 5), min_size=1, max_size=24),
        st.integers(1, BLOCK_TOKENS),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=25,
)


class BusyFleet:
    """Engines, and a gateway that sends any waiting request to any idle one, or beside a prompt that ends next."""

    def __init__(self, workers: int, times: StepTime, random: Random):
        self._times, self._random = times, random
        self._engines = [
            SimulatedEngine(cache=BlockCache(10_000), capacity_tokens=10_000 * BLOCK_TOKENS, times=times)
            for _ in range(workers)
        ]
        self._waiting: list[SimulatedJob] = []

    def ttft(self, trace) -> list[float]:
        """Return the seconds to the first token of each request."""
        found, coming = [0.0] * len(trace), list(enumerate(trace))
        while coming or any(engine.ends_at is not None for engine in self._engines):
            ends = [
                (engine.ends_at, at) for at, engine in enumerate(self._engines) if engine.ends_at is not None
            ]
            if coming and (not ends or coming[0][1].at <= min(ends)[0]):
                number, request = coming.pop(0)
                now = request.at
                self._waiting.append(SimulatedJob(number, request, now))
            else:
                now, at = min(ends)
                engine = self._engines[at]
                engine.finish(now)
                for job in engine.first_tokens:
                    found[job.number] = now - trace[job.number].at
                engine.first_tokens.clear()
                self._send_beside(engine, now)
                engine.begin(now)
            self._send(now)
        return found

    def _send(self, now: float) -> None:
        while self._waiting and (idle := [each for each in self._engines if not self._left(each)]):
            self._random.choice(idle).submit(self._take(), now)

    def _send_beside(self, engine: SimulatedEngine, now: float) -> None:
        if self._waiting and self._left(engine) < self._times.chunk_tokens and self._random.random() < 0.5:
            engine._waiting.append(self._take())

    def _take(self) -> SimulatedJob:
        return self._waiting.pop(self._random.randrange(len(self._waiting)))

    @staticmethod
    def _left(engine: SimulatedEngine) -> int:
        jobs = [*engine._waiting, *engine._prefilling]
        return sum(job.request.prompt_tokens - job.computed for job in jobs)


@given(REQUESTS, TIMES, st.integers(1, 4), st.integers(0, 2**32))
def test_no_request_has_its_first_token_before_the_bound_of_a_busy_fleet(rows, times, workers, seed):
    trace = traced(rows)
    found = BusyFleet(workers, times, Random(seed)).ttft(trace)
    bound = least_ttft_when_busy(trace, times, workers=workers)
    assert all(ttft >= least - 1e-9 for ttft, least in zip(found, bound, strict=True))


def test_a_request_that_finds_all_workers_busy_waits_for_the_first_prompt_under_way():
    long, longer, short = (list(range(tokens // BLOCK_TOKENS)) for tokens in (8192, 16_384, 512))
    rows = [(0.0, [9, *longer], 64, 1), (0.01, [8, *long], 64, 1), (0.02, [7, *short], 64, 1)]
    times = StepTime(chunk_tokens=16_384)
    bound = least_ttft_when_busy(traced(rows), times, workers=2)
    assert bound[2] == pytest.approx(0.01 + times.prefill(8192 + 64) / 1000 - 0.02)
    assert least_ttft_when_busy(traced(rows), times, workers=3)[2] == pytest.approx(
        times.prefill(512 + 64) / 1000
    )
