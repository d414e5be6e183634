"""Endless distinct prefixes leave the index within its bound. tests/benchmarks/index/distinct.py sends millions."""

import asyncio
import os

from tests.benchmarks.index.distinct import flood, opened

BOUND_BYTES = 256 * 1024
WAVES = 3
PREFIXES = 2000
"""Of one wave: nine times as many as fit."""


async def test_distinct_prefixes_leave_the_index_within_its_bound(valkey, tmp_path):
    async with opened(valkey.url, tmp_path.name[-40:], BOUND_BYTES) as parts:
        for wave in range(WAVES):
            seen = await flood(parts, valkey.url, PREFIXES, os.getpid(), seed=wave)
            assert seen.refused == 0
            # A fast machine sends a whole wave within one round of maintenance; the round after it evicts.
            async with asyncio.timeout(60):
                while parts.memory_bytes > BOUND_BYTES:
                    await asyncio.sleep(0.05)
            assert parts.index.replica.nodes
