"""Workers that send nothing any more: when they are probed, when they count as stalled, and when they do not."""

import asyncio
import time

import pytest

from gateway.fleet.fleet import Fleet
from gateway.fleet.loads import LoadShare
from gateway.fleet.stalls import (
    BROKEN_SECONDS,
    LOOK_SECONDS,
    PREFILL_SECONDS_MAX,
    PROBE_ANSWER_SECONDS_MAX,
    QUIET_SECONDS_MIN,
    StallDetector,
    quiet_after_seconds,
)
from gateway.fleet.worker import Worker
from radix_cache.match import WorkerId
from workers.adapter import WorkerReport
from workers.worker import Health


class Adapter:
    """A worker's side: silent, or not; probes are never answered."""

    isolates = True

    def __init__(self):
        self.received = 0
        self.awaited = True
        self.probes = self.abandoned = self.broken = 0

    async def probe(self):
        self.probes += 1
        await asyncio.sleep(3600)
        return WorkerReport()

    def abandon(self):
        self.abandoned += 1

    def break_off(self):
        self.broken += 1

    def close(self):
        pass


def worker(name):
    made = Worker(
        id=WorkerId(name), kind="test", adapter=Adapter(), models=frozenset({"m"}), models_fixed=True
    )
    made.health = made.health.probe_answered(0.0)
    LoadShare(made.load, uncached_tokens=0, kv_tokens=1)
    return made


@pytest.fixture
async def stage():
    """A fleet of two workers with a stream each, the first of them silent, and its detector."""
    silent, other = worker("silent"), worker("other")
    detector = StallDetector(Fleet([silent, other]))
    detector.look()
    yield silent, other, detector
    for probe in detector._probes:
        probe.cancel()


async def pass_silently(detector, seconds, *others):
    """Let time pass in which only the others send."""
    for _ in range(round(seconds / LOOK_SECONDS)):
        for other in others:
            other.adapter.received += 1
        detector.look()
    await asyncio.sleep(0)


async def test_a_silent_worker_is_probed_then_down_and_at_last_its_streams_are_broken_off(stage):
    silent, other, detector = stage
    await pass_silently(detector, QUIET_SECONDS_MIN - LOOK_SECONDS, other)
    assert silent.adapter.probes == 0
    await pass_silently(detector, LOOK_SECONDS, other)
    assert (silent.adapter.probes, silent.health.state) == (1, Health.UP)
    await pass_silently(detector, PROBE_ANSWER_SECONDS_MAX, other)
    assert (silent.health.state, silent.adapter.abandoned, silent.adapter.broken) == (Health.DOWN, 1, 0)
    await pass_silently(detector, BROKEN_SECONDS, other)
    assert silent.adapter.broken > 0
    assert (other.adapter.probes, other.health.state) == (0, Health.UP)


async def test_any_byte_ends_the_silence_that_of_an_answered_probe_too(stage):
    silent, other, detector = stage
    for _ in range(5):
        await pass_silently(detector, QUIET_SECONDS_MIN + PROBE_ANSWER_SECONDS_MAX - LOOK_SECONDS, other)
        silent.adapter.received += 1
        await pass_silently(detector, LOOK_SECONDS, other)
    assert silent.health.state is Health.UP
    assert silent.adapter.probes == 5


async def test_answers_that_slow_clients_hold_up_are_no_silence(stage):
    silent, other, detector = stage
    silent.adapter.awaited = False
    await pass_silently(detector, 60, other)
    assert (silent.health.state, silent.adapter.probes) == (Health.UP, 0)


async def test_time_in_which_the_gateway_does_not_look_is_no_silence(stage):
    """A look counts the same however long ago the last one was: the gateway may have been held up."""
    silent, _, detector = stage
    running = asyncio.ensure_future(detector.run())
    await asyncio.sleep(0)
    silences = detector._silences
    time.sleep(2 * LOOK_SECONDS)  # noqa: ASYNC251
    await asyncio.sleep(LOOK_SECONDS)
    running.cancel()
    await asyncio.wait([running])
    assert silences[WorkerId("silent")].seconds <= 2 * LOOK_SECONDS
    assert silent.health.state is Health.UP


async def test_a_worker_without_requests_is_not_looked_at(stage):
    silent, other, detector = stage
    silent.load.streams = 0
    await pass_silently(detector, 60, other)
    assert (silent.health.state, silent.adapter.probes) == (Health.UP, 0)


async def test_streams_are_not_broken_off_where_no_other_worker_serves(stage):
    silent, other, detector = stage
    other.health = other.health.drained()
    await pass_silently(detector, 60, other)
    assert (silent.health.state, silent.adapter.abandoned, silent.adapter.broken) == (Health.DOWN, 0, 0)


async def test_a_draining_worker_goes_on_draining(stage):
    silent, other, detector = stage
    silent.health = silent.health.drained()
    await pass_silently(detector, 2 * BROKEN_SECONDS, other)
    assert silent.health.state is Health.DRAINING
    assert silent.adapter.broken > 0


def test_a_slow_worker_is_given_more_time():
    slow = worker("slow")
    assert quiet_after_seconds(slow) == QUIET_SECONDS_MIN
    for _ in range(200):
        slow.learnt.own.learn_step(400.0)
    slow.learnt.join(slow.learnt.own)
    slow.learnt.own.learn_prefill(10, 30.0)
    assert quiet_after_seconds(slow) > 10


def test_queued_prompts_excuse_silence_for_a_while():
    busy = worker("busy")
    LoadShare(busy.load, uncached_tokens=20_000, kv_tokens=1)
    assert QUIET_SECONDS_MIN < quiet_after_seconds(busy) <= PREFILL_SECONDS_MAX
    LoadShare(busy.load, uncached_tokens=10_000_000, kv_tokens=1)
    assert quiet_after_seconds(busy) == PREFILL_SECONDS_MAX


async def test_a_worker_without_stall_detection_is_left_alone():
    class Plain:
        isolates = True

        async def probe(self):
            raise AssertionError

    one = worker("plain")
    one.adapter = Plain()
    detector = StallDetector(Fleet([one]))
    await pass_silently(detector, 60)
    assert one.health.state is Health.UP
