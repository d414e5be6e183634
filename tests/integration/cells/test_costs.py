"""The cost of a request in a cell, in commands and bytes: it does not depend on other cells, and is as planned."""

import pytest

from tests.benchmarks.fleet.cells import count_cells
from tests.benchmarks.fleet.load import FleetLoad
from tests.benchmarks.fleet.predicted import predicted_in_cells

LOAD = FleetLoad(gateways=2, requests_per_second=10, requests=100, new_blocks=4, one_by_one=True)
"""One by one: on a busy machine more requests of a rate would share a call of Redis than the plan says."""
COUNTS_MAX = 3


@pytest.mark.timeout(600)
async def test_a_request_costs_a_cell_what_the_plan_calculates_also_beside_another_cell(tmp_path):
    # What a gateway that is stopped while the cells rest does not do then is counted with the requests.
    planned = predicted_in_cells(2, LOAD)
    for number in range(COUNTS_MAX):
        alone, beside = [await counted(cells, tmp_path / f"{number}-{cells}") for cells in (1, 2)]
        found = [compared(each) for each in planned], [figures(each) for each in beside]
        wanted = [near(compared(each)) for each in beside], [expected(each) for each in alone]
        if found == wanted:
            break
    assert found == wanted
    assert planned[0].bytes_out == pytest.approx(beside[0].bytes_out, rel=0.2)


def compared(costs):
    """The figures that the plan gives for every cell."""
    return [costs.commands, costs.bytes_in]


def near(values):
    return [pytest.approx(each, rel=0.2) for each in values]


async def counted(cells, directory):
    directory.mkdir()
    return await count_cells(cells, LOAD, directory, idle_seconds=2.0)


def figures(costs):
    return [costs.commands, costs.bytes_in, costs.bytes_out, costs.changes]


def expected(alone):
    """The loads of the other cell are read at a steady pace, a few bytes of them in the time of a request."""
    steady = [0, 0, 50, 0]
    return [pytest.approx(each, rel=0.2, abs=more) for each, more in zip(figures(alone), steady, strict=True)]
