"""What a cell tells the others of its loads is what it has at that moment."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from gateway.cells import cell_loads
from gateway.cells.cell_loads import CellLoads
from gateway.cells.cell_report import decode_report
from gateway.cells.home_workers import HomeWorkers
from gateway.queueing.shared.queue_messages import CellState
from policies.admission.dispatch_window import DispatchWindow
from policies.others_load import LoadTotals

WORKER = SimpleNamespace(
    id="w", address="10.0.0.1:8000", provider=None, models=frozenset({"m"}), away_tokens=0
)


class Ended(Exception):
    """The test has seen enough rounds."""


class StubFleet(dict):
    """Workers by id."""

    def __iter__(self):
        return iter(self.values())


class StubQueue:
    """A cell's queue, of one gateway, with so many streams on a worker."""

    def __init__(self):
        self.gateway, self.shards, self.streams, self.visits = "g1", [self], 1, 0
        self.shared = True

    async def exchange_with_cells(self, others, bounds, lease_ms):
        self.visits += others is not None
        return CellState(loads={"w": LoadTotals(10, self.streams, 100)})


class StubScripts:
    """The Redis of all cells: it notes the streams that are told. `on_duty`: whether this gateway tells them."""

    def __init__(self):
        self.told, self.on_duty = [], True

    async def call(self, script, keys, arguments):
        self.told.append([load.streams for load in decode_report(arguments[-1]).loads])
        return [msgspec.msgpack.encode([[], {}])] if self.on_duty else 0


@pytest.fixture
def loads(monkeypatch):
    queue, scripts = StubQueue(), StubScripts()
    rounds = CellLoads(
        scripts,
        prefix="c",
        cell="east",
        fleet=StubFleet(w=WORKER),
        queue=queue,
        windows=SimpleNamespace(of=lambda model: DispatchWindow(narrow=300, wide=600)),
        homes=HomeWorkers(SimpleNamespace(cell="east", cells={"east": ()})),
    )

    async def begin_streams(seconds):
        if len(scripts.told) == 4:
            raise Ended
        queue.streams += 1

    monkeypatch.setattr(cell_loads, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": begin_streams}))
    return SimpleNamespace(rounds=rounds, scripts=scripts, queue=queue)


async def test_a_request_sent_between_two_rounds_is_published_in_the_next_one(loads):
    with pytest.raises(Ended):
        await loads.rounds.run()
    assert loads.scripts.told == [[], [2], [3], [4]]


async def test_the_queue_is_visited_once_in_each_round(loads):
    with pytest.raises(Ended):
        await loads.rounds.run()
    assert loads.queue.visits == len(loads.scripts.told)


async def test_a_gateway_on_standby_publishes_nothing(loads):
    loads.scripts.on_duty = False
    with pytest.raises(Ended):
        await loads.rounds.run()
    assert loads.scripts.told == [[], [], [], []]
