"""Limits of plans, tenants and keys: which of them hold at a moment."""

import pytest

from gateway.settings.tenants import LimitSettings
from gateway.settings.types import Moment
from gateway.tenants.limits import limits_at, next_end, override_limits
from policies.admission.limit_windows import Window

NOW = 1_800_000_000.0


def amounts(limits):
    return {limit.name: limit.amount for limit in limits}


def test_of_limits_of_one_kind_the_smallest_holds_and_others_all():
    given = [
        LimitSettings(requests=5),
        LimitSettings(requests=3),
        LimitSettings(requests=4, per="hour"),
        LimitSettings(requests=9, reset="calendar"),
        LimitSettings(requests=1, models=("a*",)),
        LimitSettings(requests=2, mode="shadow"),
        LimitSettings(concurrency=7),
    ]
    assert amounts(limits_at(NOW, given, 2)) == {
        "requests/minute": 3,
        "requests/hour": 4,
        "requests/calendar minute": 9,
        "requests/minute/a*": 1,
        "requests (shadow)/minute": 2,
        "concurrency": 2,
    }


def test_a_limit_with_an_end_takes_the_place_of_those_without_until_then():
    given = [LimitSettings(requests=5), LimitSettings(requests=50, until=Moment.at(NOW + 10))]
    assert amounts(limits_at(NOW, given)) == {"requests/minute": 50}
    assert amounts(limits_at(NOW + 10, given)) == {"requests/minute": 5}
    assert next_end(NOW, given) == NOW + 10
    assert next_end(NOW + 10, given) == float("inf")


def test_a_tenants_own_limits_take_the_place_of_its_plans():
    plan, own = [LimitSettings(requests=5), LimitSettings(total_tokens=9)], [LimitSettings(requests=50)]
    assert amounts(override_limits(limits_at(NOW, plan, 3), limits_at(NOW, own))) == {
        "requests/minute": 50,
        "total_tokens/minute": 9,
        "concurrency": 3,
    }


def test_money_is_counted_in_millionths_and_a_soft_limit_alerts_when_it_is_reached():
    (limit,) = limits_at(NOW, [LimitSettings(spend=0.25, per="month", reset="calendar", mode="soft")])
    assert (limit.amount, limit.alert_at, limit.window) == (250_000, 1.0, Window.of("month", "calendar"))


@pytest.mark.parametrize("given", [{}, {"requests": 1, "spend": 2.0}, {"concurrency": 1, "reset": "rolling"}])
def test_a_limit_is_of_one_unit_and_of_one_kind(given):
    with pytest.raises(ValueError):
        LimitSettings(**given)
