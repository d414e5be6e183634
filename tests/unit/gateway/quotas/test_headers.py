"""Rate limit headers, as OpenAI writes them."""

import pytest

from gateway.quotas.headers import duration, openai_headers
from gateway.quotas.limit import Limit, concurrency
from gateway.quotas.quota_store import LimitStatus, Refusal
from policies.admission.limit_windows import Window


def standing(limit, remaining, reset=30.0, scope="tenant:t"):
    return LimitStatus(scope=scope, limit=limit, remaining=remaining, reset_seconds=reset)


REQUESTS = Limit(unit="requests", amount=10, window=Window.of("minute"))


TOKENS = Limit(unit="total_tokens", amount=1000, window=Window.of("minute"))


OUTPUT = Limit(unit="output_tokens", amount=100, window=Window.of("minute"))


SHADOW = Limit(unit="requests", amount=5, window=Window.of("minute"), mode="shadow")


def test_the_headers_have_of_each_kind_the_limit_with_the_least_left():
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
def test_a_refusal_names_the_limit_that_refused_even_where_another_has_less_left(turned):
    limit_statuses = [standing(OUTPUT, 1), standing(TOKENS, 900)]
    refusal = Refusal(scope="tenant:t", limit=TOKENS, retry_after_seconds=1.0)
    told = openai_headers(limit_statuses[::-1] if turned else limit_statuses, refusal)
    assert told["x-ratelimit-limit-tokens"] == "1000"
    assert told["x-radixgate-limit"] == "tenant:t; total_tokens/minute"


def test_a_name_that_no_header_can_have_is_quoted():
    odd = Limit(unit="requests", amount=1, window=Window.of("day"), models=("größe\r\n*",))
    told = openai_headers([], Refusal(scope="tenant:t", limit=odd, retry_after_seconds=1.0))
    assert told["x-radixgate-limit"] == "tenant:t; requests/day/gr%C3%B6%C3%9Fe%0D%0A*"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.0115, "12ms"), (1.5, "1.5s"), (60, "1m0s"), (360, "6m0s"), (59.9999, "1m0s")]
)
def test_durations_are_written_as_openai_writes_them(seconds, said):
    assert duration(seconds) == said
