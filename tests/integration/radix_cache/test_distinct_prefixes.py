"""Prefixes without end leave the index within its bound. tests/benchmarks/index/distinct.py sends millions."""

import asyncio
import os

from gateway.kv_index.shared_index_parts import NODE_BYTES
from tests.benchmarks.index.distinct import flood, opened

BOUND_BYTES = 256 * 1024
PREFIXES = 6000
"""Twenty-seven times as many as fit."""


async def test_distinct_prefixes_leave_the_index_within_its_bound(valkey, tmp_path):
    async with opened(valkey.url, tmp_path.name[-40:], BOUND_BYTES) as parts:
        seen = await flood(parts, valkey.url, PREFIXES, os.getpid())
        async with asyncio.timeout(60):
            while parts.memory_bytes > BOUND_BYTES:
                await asyncio.sleep(0.05)
        assert parts.index.replica.nodes
    assert seen.refused == 0
    # What arrives within one round of maintenance comes on top.
    assert seen.index_max < PREFIXES * NODE_BYTES
