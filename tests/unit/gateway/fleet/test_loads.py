"""The load ahead on a worker, and the part of it that has been computed by now."""

import pytest

from gateway.fleet.loads import LoadShare, WorkerLoad
from policies.others_load import LoadTotals
from tests.fakes.clock import FakeClock
from workers.load_reports.engine_loads import NO_LOAD, EngineLoad
from workers.load_reports.load_subscriber import SILENT_SECONDS
from workers.worker import Speed

SPEED = Speed(ms_per_token=0.1)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def load(clock):
    return WorkerLoad(clock=clock)


def test_nothing_has_been_computed_at_first_and_never_all_before_it_answers(load, clock):
    LoadShare(load, uncached_tokens=10_000, kv_tokens=1)
    assert load.computed(SPEED) == 0
    clock.advance(0.5)
    assert 3000 < load.computed(SPEED) < 5000
    clock.advance(60)
    assert load.computed(SPEED) == 8000


def test_a_first_token_begins_the_count_again(load, clock):
    first = LoadShare(load, uncached_tokens=5000, kv_tokens=1)
    LoadShare(load, uncached_tokens=5000, kv_tokens=1)
    clock.advance(0.5)
    first.note_first_token()
    assert load.computed(SPEED) == 0
    clock.advance(0.1)
    assert load.computed(SPEED) == pytest.approx(817, abs=1)


def test_idle_time_is_no_progress_on_what_comes_after_it(load, clock):
    LoadShare(load, uncached_tokens=100, kv_tokens=1).end()
    clock.advance(60)
    LoadShare(load, uncached_tokens=5000, kv_tokens=1)
    assert load.computed(SPEED) == 0


def test_first_tokens_of_other_gateways_count_too(load, clock):
    clock.advance(9)
    load.update_others(LoadTotals(4000, 1, 4000))
    assert load.computed(SPEED) == 0
    clock.advance(0.2)
    assert load.computed(SPEED) > 1000
    load.update_others(LoadTotals(1000, 1, 4000))
    assert load.computed(SPEED) == 0
    load.update_others(LoadTotals(0, 0, 0))
    assert load.computed(SPEED) == 0


def test_what_the_feed_reports_for_long_enough_and_no_gateway_sent_is_foreign(load, clock):
    LoadShare(load, uncached_tokens=100, kv_tokens=150)
    for streams in (4, 5, 3, 6):
        load.update_from_feed(EngineLoad(streams=streams, tokens_queued=400, kv_tokens=1150))
        clock.advance(0.3)
    assert load.external == NO_LOAD
    load.update_from_feed(EngineLoad(streams=9, tokens_queued=300, kv_tokens=1150))
    assert load.external == EngineLoad(streams=2, tokens_queued=200, kv_tokens=1000)


def test_what_another_gateway_sent_is_not_foreign_though_its_announcement_is_late(load, clock):
    for _ in range(3):
        load.update_from_feed(EngineLoad(streams=1, tokens_queued=500, kv_tokens=600))
        clock.advance(0.3)
    load.update_others(LoadTotals(500, 1, 600))
    for _ in range(10):
        load.update_from_feed(EngineLoad(streams=1, tokens_queued=500, kv_tokens=600))
        assert load.external == NO_LOAD
        clock.advance(0.3)


def test_the_load_of_a_probe_counts_only_while_the_feed_of_its_worker_is_silent(load, clock):
    for _ in range(2):
        load.update_from_feed(EngineLoad(streams=2))
        clock.advance(1.0)
    load.update_from_probe(EngineLoad(streams=7))
    load.update_from_probe(EngineLoad(streams=7))
    assert (load.has_load_feed, load.external.streams) == (True, 2)
    clock.advance(SILENT_SECONDS)
    load.update_from_probe(EngineLoad(streams=7))
    load.update_from_probe(EngineLoad(streams=7))
    assert (load.has_load_feed, load.external.streams) == (False, 7)
    load.update_from_feed(EngineLoad(streams=1))
    assert (load.has_load_feed, load.external.streams) == (True, 1)


def test_a_place_counts_from_entering_to_leaving_and_leaves_once():
    load = WorkerLoad()
    place = LoadShare(load, uncached_tokens=100, kv_tokens=150)
    assert (load.tokens_queued, load.streams, load.kv_tokens) == (100, 1, 150)
    place.note_first_token()
    place.note_first_token()
    assert (load.tokens_queued, load.streams, load.kv_tokens) == (0, 1, 150)
    place.end()
    place.end()
    place.note_first_token()
    assert (load.tokens_queued, load.streams, load.kv_tokens) == (0, 0, 0)
