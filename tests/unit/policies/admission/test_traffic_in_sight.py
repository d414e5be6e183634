"""Which classes and tenants are in sight, and when one tenant crowds out another."""

import pytest

from policies.admission.traffic_in_sight import SIGHT_SECONDS, STANDING_SECONDS, TrafficInSight
from policies.admission.waiting_bounds import NONE_WAITING, WaitingTotals


@pytest.fixture
def traffic():
    return TrafficInSight()


def test_the_targets_of_all_models_are_in_sight_for_a_while(traffic):
    assert traffic.see("m", 0.5, "a", 0.0, crowds=False)
    assert not traffic.see("m", 0.5, "a", 1.0, crowds=False)
    traffic.see("n", 2.0, "a", 5.0, crowds=False)
    assert traffic.targets(("m", "n", "never seen"), 5.0) == {0.5, 2.0}
    assert traffic.targets(("m", "n"), 1.1 + SIGHT_SECONDS) == {2.0}
    assert traffic.see("m", 0.5, "a", 20.0, crowds=False)


def test_tenants_that_are_all_served_at_once_do_not_contend(traffic):
    for number in range(10):
        traffic.see("m", 0.5, f"t{number % 3}", 0.1 * number, crowds=False)
    assert not traffic.contended(("m",), 1.0)


def test_a_single_tenant_does_not_contend_with_itself(traffic):
    traffic.see("m", 0.5, "a", 0.0, crowds=False)
    traffic.see("m", 0.5, "a", 0.1, crowds=True)
    assert not traffic.contended(("m",), 1.0)


def test_tenants_that_all_have_requests_waiting_leave_none_to_protect(traffic):
    for number in range(10):
        traffic.see("m", 0.5, f"t{number % 2}", 0.1 * number, crowds=True)
    assert not traffic.contended(("m",), 1.0)


@pytest.mark.parametrize("model", ["m", "n"])
def test_a_tenant_that_has_requests_waiting_contends_with_one_that_has_none(traffic, model):
    traffic.see("m", 0.5, "flood", 0.0, crowds=True)
    traffic.see(model, 0.5, "victim", 1.0, crowds=False)
    traffic.see("m", 0.5, "flood", 2.0, crowds=True)
    assert traffic.contended(("m", "n"), 2.0)
    assert not traffic.contended(("m", "n"), 1.1 + SIGHT_SECONDS)


def test_a_tenant_floods_once_it_has_had_most_of_all_waiting_requests_for_a_while(traffic):
    waiting, seen = WaitingTotals(3, 3000), []
    for at in (0.0, STANDING_SECONDS, 0.1 + STANDING_SECONDS):
        traffic.see("m", 0.5, "flood", at, crowds=True, flood=waiting)
        traffic.see("m", 0.5, "victim", at, crowds=False)
        seen.append(traffic.standing_flood(("m", "n"), at))
    assert seen == [NONE_WAITING, NONE_WAITING, waiting]
    assert traffic.standing_flood(("m",), 0.2 + 2 * STANDING_SECONDS) == NONE_WAITING
