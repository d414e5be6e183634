"""Simulated cells: what they change, what they must not change, and what is the gateway's own rule."""

from collections import Counter
from dataclasses import replace

from policies.cell_ownership import away_tokens, fair_part, owner_of
from policies.others_load import LoadTotals
from policies.simulation.cells import CellExchange, TenantCells
from policies.simulation.contenders import contender
from policies.simulation.gateway_view import GatewayView
from policies.simulation.outcome import summary
from policies.simulation.scenario import FleetAction, FleetChange, Scenario
from policies.simulation.simulation import Simulation
from policies.simulation.trial import TraceSource, Trial
from policies.simulation.turns.queue_rule import RELEASE_WINDOW_TOKENS, QueueRule
from policies.simulation.workloads import WorkloadParameters
from radix_cache.match import WorkerId
from tests.benchmarks.fairness.shares import evenness

WORKERS = [WorkerId(f"w{at:04}") for at in range(40)]
SCENARIO = Scenario(
    workers=40,
    kv_tokens=400_000,
    gateways=6,
    window_tokens=RELEASE_WINDOW_TOKENS,
    turns=QueueRule(),
)
SOURCE = TraceSource(
    workload="mixed", load=WorkloadParameters(requests=600, rate=30, tenants=60), isolates=True
)


def outcomes(**changes):
    return Trial(subject="cost", source=SOURCE, scenario=replace(SCENARIO, **changes)).run().outcomes


def own_load(view, worker, load):
    """Put load of its own on a worker of a view."""
    view._add(worker, load, 0.0)


def test_one_cell_is_the_same_as_no_cells():
    assert outcomes(cells=1) == outcomes()


def test_cells_answer_everything_and_the_same_run_is_the_same():
    changes = (
        FleetChange(at=5.0, worker=0, what=FleetAction.KILL),
        FleetChange(at=9.0, worker=0, what=FleetAction.JOIN),
    )
    found = outcomes(cells=3, changes=changes)
    assert found == outcomes(cells=3, changes=changes) != outcomes(cells=2, changes=changes)
    assert all((one.last_at is not None) != (one.error is not None) for one in found)


def test_a_tenant_is_served_by_the_cell_that_the_gateways_would_choose():
    trace = SOURCE.trace(0)
    simulation = Simulation(trace, contender("cost", {}), replace(SCENARIO, cells=3))
    served = {}
    begin = simulation._gateway_of

    def note(request):
        at = begin(request)
        served.setdefault(request.tenant, set()).add(at)
        return at

    simulation._gateway_of = note
    simulation.run()
    names = [f"cell-{at}" for at in range(3)]
    for tenant, gateways in served.items():
        assert {at % 3 for at in gateways} == {names.index(owner_of(tenant, names))}
    assert len(set().union(*served.values())) == SCENARIO.gateways


def test_a_cell_learns_of_the_others_late_and_counts_their_fair_part_of_a_window():
    views = [GatewayView(WORKERS, replace(SCENARIO, cells=3)) for _ in range(3)]
    exchange = CellExchange(views, 3 * [len(WORKERS) * [True]])
    own_load(views[0], 7, LoadTotals(9_000, 2, 20_000))
    own_load(views[1], 7, LoadTotals(50, 1, 100))
    exchange.exchange(0, 600, 0.0)
    assert views[1].queued(7) == 50
    exchange.exchange(1, 600, 0.1)
    exchange.exchange(2, 600, 0.2)
    assert views[1].queued(7) == 50 + fair_part(600, 1)
    assert views[2].queued(7) == fair_part(600, 2)
    assert views[1].own_load(7) == LoadTotals(50, 1, 100)
    assert views[0].queued(7) == 9_000, "It exchanged before the others had published anything."
    assert views[0].queued(8) == 0


def test_a_request_may_go_where_all_that_is_ahead_is_of_other_cells():
    view = GatewayView(WORKERS, SCENARIO)
    view.take_load_of_cells(3, LoadTotals(16_000, 4, 16_000), 0.0)
    assert view.fits(3, 5_000, 16_384)
    own_load(view, 3, LoadTotals(10, 1, 10))
    assert not view.fits(3, 5_000, 16_384)


def test_every_worker_is_at_home_in_one_cell_and_counts_as_busier_in_the_others():
    tenants = TenantCells(4)
    homes = [tenants.homes(cell, WORKERS) for cell in range(4)]
    assert all(sum(home[at] for home in homes) == 1 for at in range(len(WORKERS)))
    views = [GatewayView(WORKERS, replace(SCENARIO, cells=4)) for _ in range(4)]
    view, exchange = views[0], CellExchange(views, homes)
    for window in (RELEASE_WINDOW_TOKENS, 2000):
        exchange.take_window(0, window)
        tokens = Counter(view.snapshot(at, 0.0).tokens_queued for at in range(len(WORKERS)))
        assert tokens == {0: sum(homes[0]), away_tokens(window, 3): len(WORKERS) - sum(homes[0])}
    assert away_tokens(RELEASE_WINDOW_TOKENS, 3) > away_tokens(2000, 3)


def test_cells_route_about_as_well_as_one_cell():
    load = WorkloadParameters(requests=1500, rate=40, tenants=500)
    source = replace(SOURCE, load=load)
    ttft = [
        summary(
            Trial(subject="cost", source=source, scenario=replace(SCENARIO, workers=80, cells=cells))
            .run()
            .outcomes
        )["ttft_ms_mean"]
        for cells in (1, 3)
    ]
    assert ttft[1] <= 1.08 * ttft[0]


def test_beyond_capacity_tenants_have_the_shares_that_they_have_in_one_cell():
    load = WorkloadParameters(requests=700, rate=96, tenants=40)
    trace = replace(SOURCE, load=load).trace(0)
    overloaded = replace(SCENARIO, workers=6, kv_tokens=1_000_000)
    found = [
        Simulation(trace, contender("cost", {}), replace(overloaded, cells=cells)).run().outcomes
        for cells in (1, 3)
    ]
    even = [evenness(outcomes, {}, trace[-1].at) for outcomes in found]
    assert even[1] >= 0.95 * even[0] > 0.9
