"""What is ahead on a worker, and how much of it has been computed by now."""

import pytest

from gateway.dispatch.loads import Place, WorkerLoad
from gateway.queue.store import Load
from tests.fakes.clock import FakeClock
from workers.worker import Speed

SPEED = Speed(ms_per_token=0.1)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def load(clock):
    return WorkerLoad(clock=clock)


def test_nothing_has_been_computed_at_first_and_never_all_before_it_answers(load, clock):
    Place(load, uncached_tokens=10_000, kv_tokens=1)
    assert load.computed(SPEED) == 0
    clock.advance(0.5)
    assert 3000 < load.computed(SPEED) < 5000
    clock.advance(60)
    assert load.computed(SPEED) == 8000


def test_a_first_token_begins_the_count_anew(load, clock):
    first = Place(load, uncached_tokens=5000, kv_tokens=1)
    Place(load, uncached_tokens=5000, kv_tokens=1)
    clock.advance(0.5)
    first.first_token()
    assert load.computed(SPEED) == 0
    clock.advance(0.1)
    assert load.computed(SPEED) == pytest.approx(850, abs=1)


def test_idle_time_is_no_progress_on_what_comes_after_it(load, clock):
    Place(load, uncached_tokens=100, kv_tokens=1).leave()
    clock.advance(60)
    Place(load, uncached_tokens=5000, kv_tokens=1)
    assert load.computed(SPEED) == 0


def test_first_tokens_of_other_gateways_count_too(load, clock):
    clock.advance(9)
    load.told(Load(4000, 1, 4000))
    assert load.computed(SPEED) == 0
    clock.advance(0.2)
    assert load.computed(SPEED) > 1000
    load.told(Load(1000, 1, 4000))
    assert load.computed(SPEED) == 0
    load.told(Load(0, 0, 0))
    assert load.computed(SPEED) == 0
