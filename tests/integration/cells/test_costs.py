"""A request of a cell costs the same, in commands and bytes, whatever other cells there are."""

import pytest

from tests.benchmarks.fleet.cells import count_cells
from tests.benchmarks.fleet.load import FleetLoad

LOAD = FleetLoad(gateways=1, requests_per_second=40, requests=100, new_blocks=4)


async def test_a_request_costs_a_cell_the_same_beside_another_cell(tmp_path):
    (tmp_path / "alone").mkdir()
    (tmp_path / "beside").mkdir()
    alone = await count_cells(1, LOAD, tmp_path / "alone", idle_seconds=2.0)
    beside = await count_cells(2, LOAD, tmp_path / "beside", idle_seconds=2.0)
    for one, other in zip(alone, beside, strict=True):
        assert other.commands == pytest.approx(one.commands, rel=0.2)
        assert other.bytes_in == pytest.approx(one.bytes_in, rel=0.2)
        # The loads of the other cell are read at a steady pace, a few bytes of them in the time of a request.
        assert other.bytes_out == pytest.approx(one.bytes_out, rel=0.2, abs=50)
        assert other.changes == pytest.approx(one.changes, rel=0.2)
