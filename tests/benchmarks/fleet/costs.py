"""Derives the costs of gateway/planning/costs.py from counts, each from two loads that differ in one thing."""

import tempfile
from dataclasses import replace
from pathlib import Path

from gateway.planning.costs import MEASURED
from tests.benchmarks.fleet.counts import FleetCounts, count
from tests.benchmarks.fleet.delivery import us_per_delivery
from tests.benchmarks.fleet.load import BLOCK_SIZE, FleetLoad

BASE = FleetLoad(gateways=1, requests_per_second=25, requests=300, new_blocks=4)
LONG_BLOCKS = 64
SHARING = 4
ASKING_WINDOW = 2 * BASE.new_blocks * BLOCK_SIZE
"""A prompt of BASE is longer than the part of this window that one of two gateways fills without a call."""


async def derived_costs() -> dict[str, float]:
    """Count, and return the costs by name."""
    alone = await _count(BASE)
    unlimited = await _count(replace(BASE, limited=False))
    long = await _count(replace(BASE, new_blocks=LONG_BLOCKS))
    pair = await _count(replace(BASE, gateways=2, requests_per_second=50))
    four = await _count(replace(BASE, gateways=SHARING, requests_per_second=100))
    waiting = await _count(
        replace(BASE, gateways=SHARING, requests_per_second=40, prefill_ms=40, window_tokens=64)
    )
    asking = await _count(replace(BASE, gateways=2, requests_per_second=50, window_tokens=ASKING_WINDOW))
    per_block = (long.bytes_in - alone.bytes_in) / (LONG_BLOCKS - BASE.new_blocks)
    pushed = (four.bytes_out - pair.bytes_out) / (SHARING - 2)
    pushed_per_block = (long.bytes_out - alone.bytes_out) / (LONG_BLOCKS - BASE.new_blocks)
    turn_commands = _inside(waiting) - _inside(four)
    return {
        "index.commands": _inside(unlimited),
        "index.bytes_in": _own_bytes_in(unlimited) - BASE.new_blocks * per_block,
        "index.bytes_out": unlimited.bytes_out - pushed,
        "quotas.commands": _inside(alone) - _inside(unlimited),
        "quotas.bytes_in": _own_bytes_in(alone) - _own_bytes_in(unlimited),
        "quotas.bytes_out": alone.bytes_out - unlimited.bytes_out,
        "queue.commands": _inside(asking) - _inside(alone),
        "queue.bytes_in": _own_bytes_in(asking) - _own_bytes_in(alone),
        "queue.bytes_out": asking.bytes_out - alone.bytes_out - pushed,
        "queue_own.commands": _inside(pair) - _inside(alone),
        "queue_own.bytes_in": _own_bytes_in(pair) - _own_bytes_in(alone),
        "queue_own.bytes_out": pair.bytes_out - alone.bytes_out - pushed,
        "turn.commands, with those of four processes": turn_commands / waiting.turns,
        "turn.bytes_in": (_own_bytes_in(waiting) - _own_bytes_in(four)) / waiting.turns,
        "turn.bytes_out, with those of four processes": (waiting.bytes_out - four.bytes_out) / waiting.turns,
        "changes": alone.changes,
        "bytes_of_changes": pushed - BASE.new_blocks * pushed_per_block,
        "bytes_per_new_block": pushed_per_block,
        "bytes_in_per_new_block": per_block,
        "idle_commands": alone.idle_commands,
        "idle_bytes_in": alone.idle_bytes_in,
        "idle_bytes_out": alone.idle_bytes_out,
        "scripts, alone": alone.scripts,
        "scripts, shared": four.scripts,
        "redis_us_per_delivery": await _us_per_delivery(),
    }


async def _us_per_delivery() -> float:
    with tempfile.TemporaryDirectory() as directory:
        return await us_per_delivery(Path(directory))


async def _count(load: FleetLoad) -> FleetCounts:
    with tempfile.TemporaryDirectory() as directory:
        return await count(load, Path(directory))


def _inside(counts: FleetCounts) -> float:
    """Return the commands inside of scripts."""
    return counts.commands - counts.scripts


def _own_bytes_in(counts: FleetCounts) -> float:
    """Return the bytes into Redis, without those of each script's call."""
    return counts.bytes_in - counts.scripts * MEASURED.bytes_in_per_script
