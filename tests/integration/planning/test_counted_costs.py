"""The plan of a fleet against counts of real gateways: messages, bytes and commands."""

import pytest

from tests.benchmarks.fleet.counts import count
from tests.benchmarks.fleet.load import FleetLoad
from tests.benchmarks.fleet.predicted import predicted

A_GATEWAY = 25
IDLE_SECONDS = 2.0
COUNTS_MAX = 3


def load(gateways, **more):
    rate = A_GATEWAY * gateways
    return FleetLoad(
        gateways=gateways, requests_per_second=rate, requests=2 * rate, **({"new_blocks": 4} | more)
    )


@pytest.mark.parametrize("gateways", [1, 3])
async def test_the_plan_is_within_a_fifth_of_what_is_counted(gateways, tmp_path):
    asked = load(gateways)
    # On a busy machine requests come in heaps, and more of them share one call of Redis than at a steady rate.
    for number in range(COUNTS_MAX):
        directory = tmp_path / str(number)
        directory.mkdir()
        counts = await count(asked, directory, idle_seconds=IDLE_SECONDS)
        plan = predicted(asked, counts)
        found = [plan.commands, plan.bytes_in, plan.bytes_out, plan.deliveries]
        counted = [counts.commands, counts.bytes_in, counts.bytes_out, counts.changes * gateways]
        if found == pytest.approx(counted, rel=0.2):
            break
    assert found == pytest.approx(counted, rel=0.2)


async def test_the_plan_has_the_cost_of_long_prompts_with_a_shared_beginning(tmp_path):
    asked = load(2, new_blocks=40, shared_blocks=20)
    counts = await count(asked, tmp_path, idle_seconds=IDLE_SECONDS)
    plan = predicted(asked, counts)
    assert plan.bytes_in == pytest.approx(counts.bytes_in, rel=0.2)
    assert plan.bytes_out == pytest.approx(counts.bytes_out, rel=0.2)
