"""Data-parallel ranks of a worker: the prefixes that each holds, its requests, and what is forgotten."""

from array import array

import pytest

from gateway.domain.prompt_blocks import PromptBlocks
from gateway.fleet import ranks as module
from gateway.fleet.ranks import Ranks
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from tests.fakes.clock import FakeClock
from workers.load_reports.engine_loads import EngineLoad
from workers.load_reports.load_subscriber import SILENT_SECONDS

WORKER = WorkerId("w")


def prompt(*blocks):
    return PromptBlocks(
        namespace=Namespace(model="m", block_size=64),
        hashes=array("Q", blocks),
        prompt_tokens=64 * len(blocks) + 1,
        exact=True,
    )


def path(start, blocks=8):
    return range(start, start + blocks)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def ranks(clock):
    return Ranks(clock)


def sent(ranks, *blocks, of=4, session=None):
    """The rank that a prompt goes to; it has had its answer by now."""
    place = ranks.choose(WORKER, of, prompt(*blocks), session)
    place.end()
    return place.number


def test_a_worker_of_one_rank_has_nothing_to_choose(ranks):
    assert ranks.choose(WORKER, 1, prompt(*path(1))) is None


def test_what_continues_a_prompt_follows_it(ranks):
    first = ranks.choose(WORKER, 4, prompt(*path(100)))
    ahead = ranks.choose(WORKER, 4, prompt(*path(200)))
    for place in (first, ahead):
        place.note_first_token()
    assert first.number != ahead.number
    assert sent(ranks, *path(100, 12)) == first.number
    assert sent(ranks, *path(200, 12)) == ahead.number


def test_a_burst_of_new_prompts_is_spread(ranks):
    places = [ranks.choose(WORKER, 4, prompt(*path(100 * n + 4))) for n in range(1, 9)]
    assert sorted(place.number for place in places) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_two_gateways_without_records_agree(ranks):
    assert {sent(Ranks(), *path(77)) for _ in range(5)} == {77 % 4}
    assert {sent(Ranks(), *path(start), session=6) for start in (1, 2, 3, 4)} == {2}


def test_leaving_twice_is_leaving_once(ranks):
    one, other = (ranks.choose(WORKER, 2, prompt(*path(2))) for _ in range(2))
    one.end()
    one.end()
    other.end()
    assert all(vars_of(load) == (0, 0) for load in ranks._workers[WORKER].loads)


def vars_of(load):
    return load.tokens_queued, load.streams


def test_the_events_of_a_rank_show_what_it_holds_before_anything_is_sent(ranks):
    ranks.stored(WORKER, 3, array("Q", path(40)), 4)
    assert sent(ranks, *path(40)) == 3


def test_a_path_that_is_evicted_from_its_end_is_as_long_as_what_is_left(ranks):
    ranks.stored(WORKER, 3, array("Q", path(40)), 4)
    ranks.stored(WORKER, 1, array("Q", path(40, 6)), 4)
    ranks.removed(WORKER, 3, array("Q", path(42, 6)))
    assert sent(ranks, *path(40)) == 1


def test_a_rank_that_is_emptied_holds_nothing_and_the_others_what_they_held(ranks):
    for rank in (1, 3):
        ranks.stored(WORKER, rank, array("Q", path(40)), 4)
    ranks.cleared(WORKER, 3)
    assert ranks._workers[WORKER].matched(array("Q", path(40))) == [0, 8, 0, 0]


def test_the_records_of_a_worker_that_lost_its_caches_begin_again(ranks):
    ranks.stored(WORKER, 3, array("Q", path(40)), 4)
    ranks.forget(WORKER)
    assert sent(ranks, *path(40)) == 0


def test_ends_of_paths_are_forgotten_before_their_beginnings(ranks, monkeypatch):
    monkeypatch.setattr(module, "BLOCKS_MAX", 10)
    sent(ranks, *path(40))
    sent(ranks, *path(80))
    held = ranks._workers[WORKER].matched
    assert (max(held(array("Q", path(40)))), max(held(array("Q", path(80))))) == (2, 8)


BUSY = EngineLoad(streams=40, tokens_queued=5000)


def heard(ranks, clock, rank, load, readings=3):
    for _ in range(readings):
        ranks.update_from_feed(WORKER, rank, load, 4)
        clock.advance(1.0)


def test_a_rank_that_others_keep_busy_is_avoided(ranks, clock):
    assert sent(ranks, *path(100)) == 0
    heard(ranks, clock, 0, BUSY)
    assert sent(ranks, *path(100)) != 0


def test_one_busy_reading_alone_changes_nothing(ranks, clock):
    heard(ranks, clock, 0, BUSY, readings=1)
    assert sent(ranks, *path(100)) == 0


def test_load_sent_from_here_is_not_counted_twice_when_a_rank_reports_it(ranks, clock):
    places = [ranks.choose(WORKER, 4, prompt(*path(100 * n))) for n in (1, 2)]
    own = EngineLoad(streams=1, tokens_queued=513)
    for place in places:
        heard(ranks, clock, place.number, own)
    assert [vars_of(load) for load in ranks.loads(WORKER)] == [
        vars_of(load) for load in ranks._workers[WORKER].loads
    ]


def test_a_rank_that_has_fallen_silent_is_held_for_as_busy_as_is_known_here(ranks, clock):
    heard(ranks, clock, 0, BUSY)
    clock.advance(SILENT_SECONDS)
    assert sent(ranks, *path(100)) == 0


def test_a_reading_of_a_rank_that_does_not_exist_is_ignored(ranks, clock):
    heard(ranks, clock, 7, BUSY)
    assert sent(ranks, *path(100)) == 0
