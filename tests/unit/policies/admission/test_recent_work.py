"""How much of the work of the last seconds is of tenants that crowd."""

import pytest

from policies.admission.recent_work import CROWDING_MAX, PART_SECONDS, TENANTS_MAX, RecentWork


def test_all_recent_tokens_of_a_tenant_count_as_its_own_once_it_crowds():
    work = RecentWork(0.0)
    work.add("flood", 300, 0.0, crowds=False)
    work.add("other", 100, 0.1, crowds=False)
    assert work.tokens(0.1) == (0, 400)
    work.add("flood", 200, 0.2, crowds=True)
    assert work.tokens(0.2) == (500, 600)


def test_a_tenant_whose_last_request_found_none_waiting_crowds_no_more():
    work = RecentWork(0.0)
    work.add("a", 300, 0.0, crowds=True)
    work.add("a", 300, 0.1, crowds=False)
    assert work.tokens(0.1) == (0, 600)


def test_what_has_its_turn_after_a_wait_is_work_of_its_tenant_where_that_is_more_than_what_came():
    work = RecentWork(0.0)
    work.add("flood", 300, 0.0, crowds=False)
    work.add("other", 100, 0.0, crowds=False)
    work.add_turn("flood", 200, 0.1)
    assert work.tokens(0.1) == (300, 400)
    work.add_turn("flood", 200, 0.2)
    assert work.tokens(0.2) == (400, 500)
    work.add("flood", 300, 0.3, crowds=True)
    assert work.tokens(0.3) == (600, 700)


def test_what_came_long_ago_is_forgotten():
    work = RecentWork(0.0)
    work.add("flood", 300, 0.0, crowds=True)
    work.add("other", 100, 1.5 * PART_SECONDS, crowds=False)
    assert work.tokens(1.5 * PART_SECONDS) == (300, 400)
    assert work.tokens(2.6 * PART_SECONDS) == (0, 100)
    assert work.tokens(9 * PART_SECONDS) == (0, 0)


def test_work_counts_for_two_parts_after_it_came_though_nothing_comes_after_it():
    work = RecentWork(0.0)
    work.add_turn("burst", 300, 0.0)
    work.add_turn("burst", 300, 0.9 * PART_SECONDS)
    assert work.tokens(2.2 * PART_SECONDS) == (600, 600)
    assert RecentWork(0.0).tokens(2.2 * PART_SECONDS) == (0, 0)


def test_of_more_work_than_the_workers_compute_only_as_much_counts_in_a_share():
    work = RecentWork(0.0)
    work.add("flood", 900_000, 1.0, crowds=True)
    shares = [
        work.share_with("long", 50_000, 1.0, tokens_per_second=speed)
        for speed in (10_000, 100_000, 2_000_000)
    ]
    assert shares == [1.0, 0.25, pytest.approx(1 / 19)]


def test_tenants_beyond_the_bound_count_in_the_sum_alone():
    work = RecentWork(0.0)
    for number in range(TENANTS_MAX):
        work.add(f"t{number}", 1, 0.0, crowds=False)
    work.add("one more", 1000, 0.0, crowds=True)
    assert work.tokens(0.0) == (0, TENANTS_MAX + 1000)


def test_of_many_tenants_that_crowd_those_with_the_most_work_are_counted():
    work = RecentWork(0.0)
    for number in range(2 * CROWDING_MAX):
        work.add(f"t{number}", 100, 0.0, crowds=True)
    assert work.tokens(0.0) == (100 * CROWDING_MAX, 200 * CROWDING_MAX)
