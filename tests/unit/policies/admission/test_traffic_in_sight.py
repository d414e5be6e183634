"""Which classes and tenants are in sight, and when one tenant crowds out another."""

from functools import partial
from math import inf

import pytest

from policies.admission.traffic_in_sight import SIGHT_SECONDS, STANDING_SECONDS, TrafficInSight
from policies.admission.waiting_bounds import NONE_WAITING, WaitingTotals


@pytest.fixture
def traffic():
    return TrafficInSight()


@pytest.fixture
def see(traffic):
    return partial(traffic.see, "m", 0.5, tokens=1000)


def test_the_targets_of_all_models_are_in_sight_for_a_while(traffic, see):
    assert see("a", 0.0, crowds=False)
    assert not see("a", 1.0, crowds=False)
    traffic.see("n", 2.0, "a", 5.0, tokens=1000, crowds=False)
    assert traffic.demand(("m", "n", "never seen"), 5.0).keys() == {0.5, 2.0}
    assert traffic.demand(("m", "n"), 1.1 + SIGHT_SECONDS).keys() == {2.0}
    assert see("a", 20.0, crowds=False)


def test_the_demand_of_a_class_is_known_after_a_while_and_follows_what_comes(traffic, see):
    see("a", 0.0, crowds=False)
    assert traffic.demand(("m",), 0.0) == {0.5: inf}
    for number in range(1, 400):
        see("a", 0.1 * number, crowds=False)
    assert traffic.demand(("m",), 40.0)[0.5] == pytest.approx(10_000, rel=0.05)
    for number in range(400):
        see("a", 40 + 0.05 * number, crowds=False)
    assert traffic.demand(("m",), 60.0)[0.5] == pytest.approx(20_000, rel=0.15)


def test_tenants_that_are_all_served_at_once_do_not_contend(traffic, see):
    for number in range(10):
        see(f"t{number % 3}", 0.1 * number, crowds=False)
    assert not traffic.contended(("m",), 1.0)


def test_the_tenant_before_one_that_begins_to_crowd_is_still_one_to_protect(traffic, see):
    see("victim", 0.0, crowds=False)
    see("flood", 0.1, crowds=False)
    see("flood", 0.2, crowds=True)
    assert traffic.contended(("m",), 0.2)
    see("flood", 0.3, crowds=False)
    see("flood", 0.4, crowds=True)
    assert traffic.contended(("m",), 0.4)


def wait_and_have_turns(traffic, seconds):
    """Let a victim's request come every second, and one of a flood that waits have its turn."""
    for at in range(seconds):
        traffic.see("m", 0.5, "victim", float(at), tokens=1000, crowds=False)
        left = WaitingTotals(seconds - at, 9000 * (seconds - at))
        traffic.see_turn("m", 0.5, "flood", float(at), tokens=9000, crowds=True, flood=left)


def test_a_burst_that_waits_crowds_out_others_for_as_long_as_its_requests_have_turns(traffic, see):
    see("flood", 0.0, tokens=300_000, crowds=True)
    wait_and_have_turns(traffic, 30)
    assert traffic.contended(("m",), 29.0)
    assert traffic.standing_flood(("m",), 29.0) == WaitingTotals(1, 9000)
    assert traffic.demand_of_others(("m",), 4000.0, 29.0)[0] < 1500.0


def test_a_burst_crowds_while_its_turns_are_further_apart_than_the_parts_of_the_recent_work(traffic, see):
    see("victim", 0.0, crowds=False)
    for at in (0.1, 1.9, 4.2, 6.5, 8.8):
        assert traffic.contended(("m",), at) is (at > 0.1)
        traffic.see_turn("m", 0.5, "burst", at, tokens=48_000, crowds=True)


@pytest.mark.parametrize(("begins_at", "is_other"), [(20.0, False), (0.0, True)])
def test_a_tenant_that_begins_with_most_of_the_work_is_none_of_the_others_before_any_of_it_waits(
    traffic, see, begins_at, is_other
):
    for at in range(30):
        see("chats", float(at), crowds=False)
        if at >= begins_at:
            see("flood", at + 0.5, crowds=False, tokens=90_000)
        if at == 24:
            assert (traffic.demand_of_others(("m",), 5000.0, 25.0)[0] > 5000) is is_other


def test_a_tenant_has_no_share_of_the_work_until_it_has_more_than_little(traffic, see):
    see("a", 0.0, crowds=False)
    see("b", 0.1, crowds=False, tokens=3000)
    assert [traffic.work_share("m", "b", 0.1, tokens_min=little) for little in (0, 2999, 3000)] == [
        0.75,
        0.75,
        0,
    ]


def test_a_tenant_with_long_prompts_crowds_beside_a_flood_of_more_than_the_workers_compute(traffic, see):
    see("flood", 1.0, crowds=True, tokens=900_000)
    long = partial(traffic.see, "m", 0.5, "long", crowds=False, tokens=48_000, window_tokens=16_384)
    long(1.1)
    assert traffic.contended(("m",), 1.1)
    long(1.2, tokens_per_second=100_000.0)
    assert not traffic.contended(("m",), 1.2)


def test_the_last_turn_of_a_burst_leaves_none_that_crowds(traffic, see):
    see("victim", 0.0, crowds=False)
    assert not traffic.see_turn("m", 0.5, "flood", 0.1, tokens=9000, crowds=False)
    assert not traffic.contended(("m",), 0.1)


def test_a_tenant_whose_requests_wait_is_alone_once_others_are_out_of_sight(traffic, see):
    see("a", 0.0, crowds=False)
    assert not traffic.has_several_tenants(("m",), 0.0)
    see("b", 0.0, crowds=False)
    assert traffic.has_several_tenants(("m",), 0.0)
    see("b", 0.1, crowds=True)
    assert traffic.has_several_tenants(("m",), 0.1)
    assert not traffic.has_several_tenants(("m", "n"), 0.1 + SIGHT_SECONDS)


def test_a_class_whose_requests_wait_is_in_sight_though_nothing_more_comes_of_it(traffic, see):
    traffic.see("m", 2.0, "batch", 0.0, tokens=9000, crowds=False)
    assert traffic.see_turn("m", 2.0, "batch", 1.0 + SIGHT_SECONDS, tokens=9000, crowds=True)
    assert not traffic.see_turn("m", 2.0, "batch", 9.0 + SIGHT_SECONDS, tokens=9000, crowds=True)
    assert 2.0 in traffic.demand(("m",), 9.0 + SIGHT_SECONDS)


def test_a_single_tenant_does_not_contend_with_itself(traffic, see):
    see("a", 0.0, crowds=False)
    see("a", 0.1, crowds=True)
    assert not traffic.contended(("m",), 1.0)


def test_tenants_that_all_have_requests_waiting_leave_none_to_protect(traffic, see):
    for number in range(10):
        see(f"t{number % 2}", 0.1 * number, crowds=True)
    assert not traffic.contended(("m",), 1.0)


def test_a_tenant_that_had_none_waiting_and_now_has_is_not_one_to_protect(traffic, see):
    for tenant in ("a", "b"):
        see(tenant, 0.0, crowds=False)
        see(tenant, 0.1, crowds=True)
    assert not traffic.contended(("m",), 0.1)
    see("a", 0.2, crowds=True)
    see("b", 0.2, crowds=False)
    see("a", 0.2, crowds=True)
    assert traffic.contended(("m",), 0.2)


@pytest.mark.parametrize("model", ["m", "n"])
def test_a_tenant_that_has_requests_waiting_contends_with_one_that_has_none(traffic, see, model):
    see("flood", 0.0, crowds=True)
    traffic.see(model, 0.5, "victim", 1.0, tokens=1000, crowds=False)
    see("flood", 2.0, crowds=True)
    assert traffic.contended(("m", "n"), 2.0)
    assert not traffic.contended(("m", "n"), 1.1 + SIGHT_SECONDS)


def test_a_tenant_with_little_of_the_work_crowds_out_none_though_its_requests_wait(traffic, see):
    for number in range(10):
        see(f"t{number % 4}", 0.1 * number, crowds=number % 4 == 0)
    assert not traffic.contended(("m",), 1.0)


def test_tenants_that_have_most_of_the_work_together_crowd_out_another_one(traffic, see):
    for number in range(10):
        see(f"t{number % 3}", 0.1 * number, crowds=number % 3 != 0)
    assert traffic.contended(("m",), 1.0)


def test_work_that_came_before_a_tenants_requests_had_to_wait_counts_as_its_work(traffic, see):
    for number in range(9):
        see("flood", 0.1 * number, crowds=False)
    see("victim", 0.9, crowds=False)
    assert not traffic.contended(("m",), 0.9)
    see("flood", 1.0, crowds=True)
    assert traffic.contended(("m",), 1.0)


def test_a_tenant_floods_once_it_has_had_most_of_all_waiting_requests_for_a_while(traffic, see):
    waiting, seen = WaitingTotals(3, 3000), []
    for at in (0.0, STANDING_SECONDS, 0.1 + STANDING_SECONDS):
        see("flood", at, crowds=True, flood=waiting)
        see("victim", at, crowds=False)
        seen.append(traffic.standing_flood(("m", "n"), at))
    assert seen == [NONE_WAITING, NONE_WAITING, waiting]
    assert traffic.standing_flood(("m",), 0.2 + 2 * STANDING_SECONDS) == NONE_WAITING


@pytest.mark.parametrize(
    ("tokens", "others_tokens", "contended"),
    [
        pytest.param(16_385, 1000, True, id="longer than the window"),
        pytest.param(16_384, 1000, False, id="as long as the window"),
        pytest.param(16_385, 16_385, False, id="half of the work"),
    ],
)
def test_a_tenant_with_most_of_the_work_crowds_once_its_prompts_are_longer_than_the_window(
    traffic, tokens, others_tokens, contended
):
    see = partial(traffic.see, "m", 0.5, crowds=False, window_tokens=16_384)
    see("short", 0.0, tokens=others_tokens - 1)
    see("short", 0.0, tokens=1)
    see("long", 0.1, tokens=tokens)
    assert traffic.contended(("m",), 0.1) == contended


def test_two_tenants_with_prompts_longer_than_the_window_crowd_together(traffic):
    see = partial(traffic.see, "m", 0.5, crowds=False, window_tokens=16_384)
    see("short", 0.0, tokens=1000)
    see("one", 0.1, tokens=48_000)
    see("other", 0.2, tokens=48_000)
    assert traffic.contended(("m",), 0.2)
    see("one", 0.3, tokens=48_000)
    assert traffic.contended(("m",), 0.3)


def test_the_demand_of_others_is_that_of_tenants_that_do_not_crowd(traffic, see):
    assert traffic.demand_of_others(("m",), 50_000, 0.0) == (0, 0)
    see("chats", 0.0, crowds=False)
    assert traffic.demand_of_others(("m",), 50_000, 0.0) == (inf, inf)
    for tenth in range(1, 200):
        see("chats", tenth / 10, crowds=False)
        if tenth > 100:
            see("flood", tenth / 10, crowds=True, tokens=40_000)
    tokens, squares = traffic.demand_of_others(("m",), 50_000, 20.0)
    assert tokens == pytest.approx(10_000, rel=0.15)
    assert squares == pytest.approx(1000 * tokens)


def test_a_tenant_that_has_little_of_the_work_is_one_of_the_others_though_its_requests_wait(traffic, see):
    for tenth in range(60):
        see("flood", tenth / 10, crowds=True, tokens=40_000)
        see("long", tenth / 10, crowds=True)
    assert traffic.demand_of_others(("m",), 50_000, 6.0)[0] == pytest.approx(10_000, rel=0.15)


def test_of_two_that_crowd_the_smaller_one_is_none_of_the_others_if_it_has_much_work(traffic, see):
    for tenth in range(60):
        see("chats", tenth / 10, crowds=False)
        see("flood", tenth / 10, crowds=True, tokens=40_000)
        see("long", tenth / 10, crowds=True, tokens=9000)
    assert traffic.demand_of_others(("m",), 50_000, 6.0)[0] == pytest.approx(10_000, rel=0.15)


def test_a_tenant_whose_prompts_have_become_short_crowds_no_more(traffic):
    see = partial(traffic.see, "m", 0.5, crowds=False, window_tokens=16_384)
    see("short", 0.0, tokens=1000)
    see("long", 0.1, tokens=48_000)
    assert traffic.contended(("m",), 0.1)
    see("long", 0.2, tokens=1000)
    assert not traffic.contended(("m",), 0.2)


def test_a_tenant_has_a_share_of_the_work_while_another_one_is_in_sight(traffic, see):
    assert traffic.work_share("m", "flood", 0.0) == 0.0
    see("flood", 0.0, crowds=False)
    assert traffic.work_share("m", "flood", 0.0) == 0.0
    see("victim", 0.1, crowds=False)
    see("flood", 0.2, crowds=False)
    see("flood", 0.3, crowds=True)
    assert traffic.work_share("m", "flood", 0.3) == 0.75
    assert traffic.work_share("m", "victim", 0.3) == 0.0
    see("flood", 0.4, crowds=False)
    assert traffic.work_share("m", "victim", 0.4) == 0.2
    assert traffic.work_share("m", "flood", 0.2 + SIGHT_SECONDS) == 0.0


def test_a_tenant_alone_does_not_contend_however_long_its_prompts(traffic):
    traffic.see("m", 0.5, "long", 0.0, tokens=48_000, crowds=False, window_tokens=16_384)
    assert not traffic.contended(("m",), 0.0)
