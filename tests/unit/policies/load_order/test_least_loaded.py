"""The order of a large fleet's workers by load: what moves a worker in it, and what takes it out."""

from random import Random

import pytest

from gateway.fleet.fleet import Fleet
from gateway.fleet.loads import LoadShare
from gateway.fleet.worker import Worker
from gateway.fleet.worker_health import WorkerHealth
from policies.cell_ownership import AWAY_TOKENS
from policies.load_order.least_loaded import RANKED_MAX
from radix_cache.match import WorkerId
from tests.fakes.clock import FakeClock
from workers.worker import Health, Role

COUNT = RANKED_MAX + 8


class Adapter:
    """An adapter that is only ever closed."""

    isolates = True

    def close(self):
        """Do nothing."""

    def abandon(self):
        """Do nothing."""


def worker(name, **fields):
    return Worker(
        id=WorkerId(name),
        kind="sglang",
        adapter=Adapter(),
        models=frozenset({"m"}),
        models_fixed=True,
        health=WorkerHealth(Health.UP),
        **fields,
    )


@pytest.fixture
def fleet():
    found = Fleet([worker(f"w{at}") for at in range(COUNT)], FakeClock(), Random(1))
    found.serving("m")
    return found


def order(fleet):
    fleet.serving("m")
    return fleet.least_loaded("m")


def load(fleet, name, tokens):
    return LoadShare(fleet[WorkerId(name)].load, uncached_tokens=tokens, kv_tokens=tokens)


def test_a_small_fleet_is_not_kept_in_order():
    fleet = Fleet([worker(f"w{at}") for at in range(RANKED_MAX)], FakeClock())
    assert order(fleet) is None


def test_a_fleet_with_halves_of_pairs_is_not_kept_in_order(fleet):
    fleet.add(worker("p", role=Role.PREFILL))
    assert order(fleet) is None
    fleet.remove(WorkerId("p"))
    assert order(fleet) is not None


def test_the_idle_worker_among_busy_ones_is_found_at_once(fleet):
    shares = {each.id: load(fleet, each.id, 9000) for each in fleet}
    shares["w7"].end()
    assert "w7" in order(fleet).least(0.0)
    assert order(fleet).fewest_tokens_queued(()) == 0
    assert order(fleet).fewest_tokens_queued({"w7"}) == 9000
    assert order(fleet).streams == COUNT - 1


def test_a_worker_that_is_down_or_has_left_is_out_of_the_order_and_of_the_sums(fleet):
    for each in list(fleet)[2:]:
        load(fleet, each.id, 5000)
    assert set(order(fleet).least(0.0)) == {"w0", "w1"}
    fleet.drain(WorkerId("w0"))
    fleet.remove(WorkerId("w1"))
    assert not {"w0", "w1"} & order(fleet).least(0.0).keys()
    assert (order(fleet).able, order(fleet).streams) == (COUNT - 2, COUNT - 2)
    fleet.resume(WorkerId("w0"))
    assert "w0" in order(fleet).least(0.0)
    assert "w0" not in order(fleet).least(0.0, without={"w0"})


def test_sums_are_nothing_again_when_all_requests_have_ended(fleet):
    shares = [load(fleet, each.id, 1000 + at) for at, each in enumerate(fleet)]
    assert order(fleet).backlog_ms > 0
    for share in shares:
        share.end()
    assert (order(fleet).streams, round(order(fleet).backlog_ms, 6)) == (0, 0.0)


def test_a_worker_that_is_at_home_in_another_cell_is_ranked_behind_but_is_no_backlog(fleet):
    load(fleet, "w0", 500)
    before = order(fleet)
    before.update(0.0)
    backlog_ms = before.backlog_ms
    home = {WorkerId("w0"), WorkerId("w7")}
    for one in fleet:
        if one.id not in home:
            one.away_tokens = AWAY_TOKENS
            for changed in one.load.on_change:
                changed()
    after = order(fleet)
    after.update(0.0)
    assert after.backlog_ms == pytest.approx(backlog_ms)
    assert "w7" in after.least(0.0)


def test_equal_workers_come_in_an_order_that_their_names_do_not_change():
    """Nor does the seed of Python's hashes, which differs from process to process."""
    orders = []
    for letter in "ab":
        fleet = Fleet([worker(f"{letter}{at}") for at in range(COUNT)], FakeClock(), Random(1))
        fleet.serving("m")
        orders.append([name.removeprefix(letter) for name in order(fleet).least(0.0)])
    assert orders[0] == orders[1]
