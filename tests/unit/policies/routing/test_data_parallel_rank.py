"""Which data-parallel rank computes a prompt."""

import pytest

from policies.routing.data_parallel_rank import STREAM_TOKENS, DataParallelRankLoad, best_rank


def loads(*queued, streams=(0, 0, 0)):
    return [
        DataParallelRankLoad(tokens_queued=tokens, streams=s)
        for tokens, s in zip(queued, streams, strict=True)
    ]


IDLE = loads(0, 0, 0)


@pytest.mark.parametrize("home", [0, 1, 2, 3 * 7 + 2])
def test_a_prompt_that_no_rank_holds_goes_to_its_home(home):
    assert best_rank(IDLE, [0, 0, 0], 1000, home) == home % 3


def test_a_rank_that_holds_the_prefix_is_better_than_home():
    assert best_rank(IDLE, [0, 640, 0], 1000, home=0) == 1


def test_the_longest_prefix_is_left_alone_where_the_queue_costs_more_than_it_saves():
    assert best_rank(loads(0, 641, 0), [0, 640, 0], 1000, home=2) == 2


def test_home_is_left_where_half_a_prompt_more_waits_there():
    assert best_rank(loads(499, 0, 0), [0, 0, 0], 1000, home=0) == 0
    assert best_rank(loads(501, 0, 0), [0, 0, 0], 1000, home=0) == 1


def test_running_streams_weigh_a_little():
    busy = loads(0, 0, 0, streams=(0, 100, 100))
    assert best_rank(busy, [0, 64, 100 * STREAM_TOKENS + 1], 4000, home=1) == 2
    assert best_rank(busy, [0, 64, 100 * STREAM_TOKENS - 1], 4000, home=1) == 0
