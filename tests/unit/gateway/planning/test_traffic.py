"""What requests cost Redis, by the number of processes that share it."""

from dataclasses import replace

import pytest

from gateway.planning.costs import MEASURED
from gateway.planning.demand import FleetDemand
from gateway.planning.traffic import request_traffic, scripts_per_request

DEMAND = FleetDemand(
    requests_per_second=100,
    workers=8,
    tenants=10,
    models=1,
    blocks=1_000_000,
    prompt_tokens=1024,
    shared_prefix=0.5,
    waiting=0.0,
)


def test_every_change_is_delivered_to_every_process():
    four, eight = (request_traffic(DEMAND, members, MEASURED) for members in (4, 8))
    assert four.deliveries == pytest.approx(4 * four.changes)
    assert eight.bytes_out > 1.8 * four.bytes_out


def test_one_process_of_each_gateway_is_notified_of_changes():
    one, four = (request_traffic(DEMAND, 8, MEASURED, followers) for followers in (2, 8))
    assert one.deliveries == pytest.approx(2 * one.changes)
    assert (one.commands, one.bytes_in) == (four.commands, four.bytes_in)
    assert one.bytes_out < four.bytes_out / 2


def test_a_process_that_is_alone_has_its_queue_in_memory():
    alone, two = (request_traffic(replace(DEMAND, waiting=1.0), members, MEASURED) for members in (1, 2))
    assert alone.commands < two.commands - MEASURED.queue_own.commands - MEASURED.turn.commands


def test_requests_that_gateways_place_without_asking_cost_less():
    asking, half, none = (
        request_traffic(replace(DEMAND, asking=share), 4, MEASURED) for share in (1.0, 0.5, 0.0)
    )
    assert asking.commands > half.commands > none.commands
    assert asking.scripts > half.scripts > none.scripts
    assert request_traffic(replace(DEMAND, asking=0.0), 4, MEASURED, cell=True) == request_traffic(
        DEMAND, 4, MEASURED, cell=True
    )


def test_new_blocks_cost_bytes_once_into_redis_and_once_to_every_process():
    short, long = (
        request_traffic(replace(DEMAND, prompt_tokens=tokens), 4, MEASURED) for tokens in (1280, 2560)
    )
    assert long.bytes_in - short.bytes_in == pytest.approx(10 * MEASURED.bytes_in_per_new_block)
    assert long.bytes_out - short.bytes_out == pytest.approx(40 * MEASURED.bytes_per_new_block)


def test_scripts_of_a_request_become_fewer_the_more_requests_a_process_has():
    counts = [scripts_per_request(rate, shared=True, costs=MEASURED) for rate in (0.01, 10, 100, 1000)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == pytest.approx(MEASURED.urgent_moments + MEASURED.moments_shared, rel=0.01)
    assert scripts_per_request(0, shared=False, costs=MEASURED) == 0
