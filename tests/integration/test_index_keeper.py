"""The keeper holds the tree in Redis to its memory, of which short runs need more than their blocks."""

import time
from array import array
from uuid import uuid4

from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.keys import Keys
from tests.fakes.replica import replica

W = WorkerId("w")
SPACE = Namespace(model="m", block_size=16)


async def kept(valkey, node_blocks):
    """Nodes that stay of 100 with a block each, where 200 blocks are allowed."""
    bounds = {"blocks_max": 200, "predicted_seconds": 10, "idle_seconds_max": 1000}
    keys = Keys(prefix=f"t{uuid4().hex}", shards=1)
    one = await replica(valkey.url, keys, time.monotonic, node_blocks=node_blocks, **bounds)
    one.index.enrol(W, "first")
    await one.arrived()
    for number in range(100):
        one.index.hold(SPACE, array("Q", [1000 + number]), W)
    await one.settled()
    nodes = len(one.index.copy.nodes)
    await one.close()
    return nodes


async def test_nodes_count_towards_the_bound_as_much_as_they_weigh(valkey):
    assert await kept(valkey, node_blocks=0) == 100
    assert await kept(valkey, node_blocks=9) == 20
