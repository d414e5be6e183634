"""The chart of the demo: the cached share of both policies."""

from gateway.bench.results import RequestResult
from gateway.demo.cached_shares import HEIGHT, CachedShares, chart


def result(prompt, cached):
    return RequestResult(tenant="a", sent_at=0.0, prompt_tokens=prompt, cached_tokens=cached)


def test_ratios_are_of_all_requests_so_far():
    ratios = CachedShares()
    ratios.begin("round_robin")
    ratios.add(result(100, 0))
    ratios.add(result(100, 50))
    ratios.begin("cost")
    ratios.add(result(0, 0))
    ratios.add(result(100, 80))
    assert ratios.by_policy == {"round_robin": [0.0, 0.25], "cost": [0.0, 0.8]}


def test_each_policy_has_its_mark_at_the_height_of_its_ratio():
    drawn = list(chart({"round_robin": [0.0, 0.0], "cost": [0.0, 1.0]}, requests=2))
    assert drawn[0].endswith("|" + " x")
    assert drawn[HEIGHT].endswith("|" + "*o")
    assert drawn[-1].endswith("o round_robin   x cost")


def test_a_long_run_is_drawn_in_the_width_of_a_terminal():
    values = [at / 1000 for at in range(1000)]
    assert max(map(len, chart({"a": values, "b": values}, requests=1000))) <= 80


def test_a_run_that_has_not_begun_is_an_empty_chart():
    drawn = list(chart({"round_robin": []}, requests=10))
    assert not any("o" in line for line in drawn[: HEIGHT + 1])
