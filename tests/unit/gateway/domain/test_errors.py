"""The texts and headers of the errors that tell a client of an exhausted limit."""

import pytest

from gateway.domain.errors import BudgetExhausted, GatewayError, QuotaExceeded
from gateway.quotas.limit import Limit, concurrency
from gateway.quotas.quota_store import Refusal
from policies.admission.limit_windows import Window


def a_minute(amount, unit="requests", **more):
    return Limit(unit=unit, amount=amount, window=Window.of("minute"), **more)


@pytest.mark.parametrize(
    ("limit", "seconds", "said"),
    [
        (concurrency(1), 1.0, "1 request at one time of tenant 't' is used up. Try again in 1 second."),
        (a_minute(5), 0.25, "5 requests per minute of tenant 't' is used up. Try again in 0.25 seconds."),
        (a_minute(5), 3599.99, "5 requests per minute of tenant 't' is used up. Try again in 60 minutes."),
        (
            a_minute(1, "total_tokens", models=("qwen*", "llama-1")),
            20,
            "1 total token per minute for the models qwen*, llama-1 of tenant 't' is used up. "
            "Try again in 20 seconds.",
        ),
        (
            a_minute(1_500_000, "spend"),
            2,
            "1.5 of spend per minute of tenant 't' is used up. Try again in 2 seconds.",
        ),
    ],
)
def test_a_limit_is_spoken_of_in_english(limit, seconds, said):
    error = QuotaExceeded(Refusal(scope="tenant:t", limit=limit, retry_after_seconds=seconds))
    assert error.message == f"The limit of {said}"


def test_the_error_of_a_budget_has_its_next_beginning_and_a_header_against_retries():
    limit = Limit(unit="spend", amount=20_000_000, window=Window.of("month", "calendar"))
    error = BudgetExhausted(Refusal(scope="key:k1", limit=limit, retry_after_seconds=200_000.5))
    assert error.message == (
        "The budget of 20 of spend per calendar month of key 'k1' does not suffice. "
        "The next budget begins in 3 days."
    )
    assert error.headers() == {
        "retry-after": "200001",
        "retry-after-ms": "200000500",
        "x-should-retry": "false",
        "x-radixgate-limit": "key:k1; spend/calendar month",
    }


@pytest.mark.parametrize(("seconds", "waits"), [(1.0, True), (60.0, True), (61.0, False), (86_400.0, False)])
def test_a_wait_of_hours_has_a_header_against_retries_of_sdks(seconds, waits):
    headers = GatewayError("full", retry_after_seconds=seconds).headers()
    assert headers["retry-after"] == str(int(seconds))
    assert (headers.get("x-should-retry") != "false") == waits
