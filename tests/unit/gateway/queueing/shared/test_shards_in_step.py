"""Shards of one model's tenants are told each other's loads, and how far the turns of the others are."""

from gateway.queueing.shared.queue_messages import CellState
from gateway.queueing.shared.shards_in_step import ShardsInStep, sum_of_loads
from policies.cell_turns import QueueProgress
from policies.others_load import LoadTotals
from radix_cache.match import WorkerId

W = WorkerId("w")
WINDOW = 100


class Shard:
    """A shard with this state; it notes what it is told, and in which order shards are visited."""

    def __init__(self, visited, tokens, virtual_time=0.0, waiting=0.0):
        self._visited = visited
        self.state = CellState(
            loads={W: LoadTotals(tokens, 1, 10)} if tokens else {},
            progress={"m": QueueProgress(virtual_time, waiting)},
        )

    async def exchange_with_cells(self, others, bounds, lease_ms):
        if others is None:
            return self.state
        self._visited.append(self)
        self.others, self.bounds = others, bounds
        return self.state


class Queue:
    def __init__(self, *shards):
        self.shards = shards


def in_step(*shards):
    return ShardsInStep(Queue(*shards), lambda queue: WINDOW)


async def test_each_shard_gets_the_sum_of_what_the_others_and_other_cells_have():
    visited = []
    one, two, three = (Shard(visited, tokens) for tokens in (1, 20, 300))
    shards = in_step(one, two, three)
    for _ in range(2):
        state = await shards.visit({W: LoadTotals(4000, 2, 5)}, ())
    assert [each.others[W].tokens_queued for each in (one, two, three)] == [4320, 4301, 4021]
    assert one.others[W] == LoadTotals(4320, 4, 25)
    # Other cells are told what all shards have together.
    assert state.loads == {W: LoadTotals(321, 3, 30)}


async def test_the_shard_that_is_furthest_behind_is_visited_first_and_the_next_ones_get_what_it_took():
    visited = []
    ahead, behind, idle = Shard(visited, 0, 500, 1), Shard(visited, 0, 20, 1), Shard(visited, 0, 5)
    shards = in_step(ahead, idle, behind)
    await shards.visit({}, ())
    visited.clear()
    behind.state = CellState(loads={W: LoadTotals(70, 1, 10)}, progress=behind.state.progress)
    await shards.visit({}, ())
    assert visited == [behind, ahead, idle]
    assert ahead.others[W].tokens_queued == 70


async def test_a_shard_that_is_ahead_is_bound_by_the_one_that_is_behind():
    visited = []
    ahead, behind = Shard(visited, 0, 5000, 1), Shard(visited, 0, 20, 1)
    shards = in_step(ahead, behind)
    for _ in range(2):
        state = await shards.visit({}, ())
    assert 20 < ahead.bounds["m"].start_max < 5000
    assert behind.bounds["m"].start_max > 5000
    assert state.progress == {"m": QueueProgress(20, 2)}


async def test_a_gateway_that_begins_reads_each_shard_before_it_writes_to_any():
    visited = []
    one, two = Shard(visited, 1), Shard(visited, 20)
    shards = in_step(one, two)
    await shards.visit({}, ())
    assert one.others[W].tokens_queued == 20
    shards.forget()
    two.state = CellState()
    await shards.visit({}, ())
    assert not one.others


async def test_shards_that_were_read_get_the_sums_of_that_time():
    visited = []
    one, two = Shard(visited, 1), Shard(visited, 20)
    shards = in_step(one, two)
    assert (await shards.ask()).loads == {W: LoadTotals(21, 2, 20)}
    assert not visited
    await shards.visit({}, ())
    assert (one.others[W].tokens_queued, two.others[W].tokens_queued) == (20, 1)


def test_loads_of_several_parts_are_added_by_worker():
    assert sum_of_loads([{W: LoadTotals(1, 2, 3)}, {}, {W: LoadTotals(4, 5, 6)}]) == {W: LoadTotals(5, 7, 9)}
