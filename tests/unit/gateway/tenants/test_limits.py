"""Limits as settings have them, prices, and what clients are told of both."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.tenant import ContextBounds
from gateway.quotas.headers import anthropic_headers, duration, openai_headers
from gateway.quotas.limit import Limit, concurrency
from gateway.quotas.prices import Prices
from gateway.quotas.quota import Refusal, Standing
from gateway.settings.tenants import LimitSettings
from gateway.settings.types import Moment
from gateway.tenants.limits import in_place_of, limits_at, next_end
from policies.admission.limit_windows import Window

NOW = 1_800_000_000.0


def amounts(limits):
    return {limit.name: limit.amount for limit in limits}


PATTERNS = st.lists(st.text("ab/,%()", min_size=1, max_size=6), max_size=3).map(tuple)
KINDS = st.builds(
    Limit,
    unit=st.sampled_from(["requests", "spend"]),
    amount=st.just(1),
    window=st.sampled_from([Window.of("minute"), Window.of("minute", "calendar")]),
    models=PATTERNS,
    mode=st.sampled_from(["enforce", "soft", "shadow"]),
)


@given(KINDS, KINDS)
def test_limits_of_two_kinds_are_never_counted_under_one_name(one, other):
    assert (one.name == other.name) == (one.kind == other.kind)


def test_patterns_with_a_slash_are_not_several():
    several = Limit(unit="requests", amount=1, window=Window.of("day"), models=("meta", "llama"))
    single = Limit(unit="requests", amount=1, window=Window.of("day"), models=("meta/llama",))
    assert (several.name, single.name) == ("requests/day/meta,llama", "requests/day/meta/llama")


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
    assert amounts(in_place_of(limits_at(NOW, plan, 3), limits_at(NOW, own))) == {
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


def test_a_cost_is_rounded_up_once():
    prices = Prices.of(input=0.1, cached_input=0.02, output=0.4)
    assert prices.cost(prompt_tokens=0, cached_tokens=0, output_tokens=0) == 0
    assert prices.cost(prompt_tokens=10, cached_tokens=5, output_tokens=1) == 1
    assert prices.cost(prompt_tokens=3_000_000, cached_tokens=1_000_000, output_tokens=500_000) == 420_000
    assert Prices.of(input=0.1, cached_input=None, output=0.4).cached_input == prices.input


def test_what_is_reserved_is_never_less_than_what_it_can_come_to():
    for prices in (
        Prices.of(input=2, cached_input=0.5, output=1),
        Prices.of(input=1, cached_input=3, output=1),
    ):
        most = prices.cost_at_most(prompt_tokens=100, output_tokens=10)
        assert most == max(
            prices.cost(prompt_tokens=100, cached_tokens=cached, output_tokens=10) for cached in range(101)
        )
        tokens = prices.output_tokens_for(most, prompt_tokens=100)
        assert prices.cost_at_most(prompt_tokens=100, output_tokens=tokens) <= most


def test_the_least_context_of_all_that_hold_for_a_model_counts():
    bounds = ContextBounds(longest=100, by_models=((("a*", "b"), 50), (("ab",), 20), (("c",), 500)))
    assert [bounds.of(model) for model in ("a", "ab", "b", "c", "d")] == [50, 20, 50, 100, 100]
    assert ContextBounds().of("a") is None


def standing(limit, remaining, reset=30.0, scope="tenant:t"):
    return Standing(scope=scope, limit=limit, remaining=remaining, reset_seconds=reset)


REQUESTS = Limit(unit="requests", amount=10, window=Window.of("minute"))
TOKENS = Limit(unit="total_tokens", amount=1000, window=Window.of("minute"))
OUTPUT = Limit(unit="output_tokens", amount=100, window=Window.of("minute"))
SHADOW = Limit(unit="requests", amount=5, window=Window.of("minute"), mode="shadow")


def test_of_each_kind_the_limit_is_told_of_which_least_is_left():
    told = openai_headers(
        [
            standing(REQUESTS, 3),
            standing(TOKENS, 900, 6.0),
            standing(OUTPUT, 40, 90.5),
            standing(SHADOW, 0),
            standing(concurrency(2), 0),
        ]
    )
    assert told == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "3",
        "x-ratelimit-reset-requests": "30s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "40",
        "x-ratelimit-reset-tokens": "1m30.5s",
    }


@pytest.mark.parametrize("turned", [False, True])
def test_a_refusal_tells_the_limit_that_refused_even_where_another_has_less_left(turned):
    standings = [standing(OUTPUT, 1), standing(TOKENS, 900)]
    refusal = Refusal(scope="tenant:t", limit=TOKENS, retry_after_seconds=1.0)
    told = openai_headers(standings[::-1] if turned else standings, refusal)
    assert told["x-ratelimit-limit-tokens"] == "1000"
    assert told["x-radixgate-limit"] == "tenant:t; total_tokens/minute"


def test_anthropics_names_have_moments_and_kinds_of_their_own():
    told = anthropic_headers([standing(REQUESTS, 3), standing(OUTPUT, 40, 90.5)], NOW)
    assert told == {
        "anthropic-ratelimit-requests-limit": "10",
        "anthropic-ratelimit-requests-remaining": "3",
        "anthropic-ratelimit-requests-reset": "2027-01-15T08:00:30Z",
        "anthropic-ratelimit-tokens-limit": "100",
        "anthropic-ratelimit-tokens-remaining": "40",
        "anthropic-ratelimit-tokens-reset": "2027-01-15T08:01:31Z",
        "anthropic-ratelimit-output-tokens-limit": "100",
        "anthropic-ratelimit-output-tokens-remaining": "40",
        "anthropic-ratelimit-output-tokens-reset": "2027-01-15T08:01:31Z",
    }


def test_a_name_that_no_header_can_have_is_quoted():
    odd = Limit(unit="requests", amount=1, window=Window.of("day"), models=("größe\r\n*",))
    told = openai_headers([], Refusal(scope="tenant:t", limit=odd, retry_after_seconds=1.0))
    assert told["x-radixgate-limit"] == "tenant:t; requests/day/gr%C3%B6%C3%9Fe%0D%0A*"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.0115, "12ms"), (1.5, "1.5s"), (60, "1m0s"), (360, "6m0s"), (59.9999, "1m0s")]
)
def test_durations_are_written_as_openai_writes_them(seconds, said):
    assert duration(seconds) == said
