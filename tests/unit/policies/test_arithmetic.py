"""Windows of workers: the small sums that decide who goes, who waits and who is told to come back."""

import pytest

from policies.admission import has_window, retry_after_seconds, tokens_ahead


def test_an_idle_worker_takes_any_prompt():
    assert has_window(0, 1_000_000, 16384)


@pytest.mark.parametrize(
    ("queued", "own", "fits"), [(100, 16284, True), (100, 16285, False), (16384, 1, False)]
)
def test_the_window_is_exact(queued, own, fits):
    assert has_window(queued, own, 16384) is fits


def test_what_has_been_computed_is_not_ahead_any_more():
    assert tokens_ahead(20_000, 16_000, 50_000, 100_000) == 4000


@pytest.mark.parametrize(("kv_tokens", "kv_tokens_max"), [(100_001, 100_000), (50_000, None), (0, 0)])
def test_where_kv_is_short_or_nobody_knows_all_that_was_sent_is_ahead(kv_tokens, kv_tokens_max):
    assert tokens_ahead(20_000, 16_000, kv_tokens, kv_tokens_max) == 20_000


def test_who_is_refused_may_come_back_when_the_queue_has_drained():
    assert retry_after_seconds(100, 10.0, 30.0) == 10.0
    assert retry_after_seconds(1, 10.0, 30.0) == 1.0
    assert retry_after_seconds(1000, 10.0, 30.0) == 30.0
    assert retry_after_seconds(1000, 0.0, 30.0) == 1.0
