"""The plan of a fleet against counts of real gateways: messages, bytes and commands."""

import pytest

from tests.benchmarks.fleet.counts import count
from tests.benchmarks.fleet.load import FleetLoad
from tests.benchmarks.fleet.predicted import predicted

A_GATEWAY = 25
IDLE_SECONDS = 2.0


def load(gateways, **more):
    rate = A_GATEWAY * gateways
    return FleetLoad(
        gateways=gateways, requests_per_second=rate, requests=2 * rate, **({"new_blocks": 4} | more)
    )


@pytest.mark.parametrize("gateways", [1, 3])
async def test_the_plan_is_within_a_fifth_of_what_is_counted(gateways, tmp_path):
    asked = load(gateways)
    counts = await count(asked, tmp_path, idle_seconds=IDLE_SECONDS)
    plan = predicted(asked, counts)
    assert plan.commands == pytest.approx(counts.commands, rel=0.2)
    assert plan.bytes_in == pytest.approx(counts.bytes_in, rel=0.2)
    assert plan.bytes_out == pytest.approx(counts.bytes_out, rel=0.2)
    assert plan.deliveries == pytest.approx(counts.changes * gateways, rel=0.2)


async def test_the_plan_has_the_cost_of_long_prompts_with_a_shared_beginning(tmp_path):
    asked = load(2, new_blocks=40, shared_blocks=20)
    counts = await count(asked, tmp_path, idle_seconds=IDLE_SECONDS)
    plan = predicted(asked, counts)
    assert plan.bytes_in == pytest.approx(counts.bytes_in, rel=0.2)
    assert plan.bytes_out == pytest.approx(counts.bytes_out, rel=0.2)
