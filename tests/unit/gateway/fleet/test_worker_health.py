"""The transitions of a worker's health: probes, requests, the circuit, and operators."""

from dataclasses import replace

import pytest

from gateway.fleet.worker_health import (
    FAILURES_MAX,
    OPEN_SECONDS,
    OPEN_SECONDS_MAX,
    TRIAL_SECONDS,
    WorkerHealth,
)
from workers.worker import Health

UP = WorkerHealth(Health.UP)
NEW = WorkerHealth()


def opened(now: float = 0.0, health: WorkerHealth = UP) -> WorkerHealth:
    """Requests fail until the circuit opens, between probes that are answered."""
    for _ in range(20):
        health = health.request_failed(now)
        if health.circuit_open:
            return health
        health = health.probe_answered(now)
    raise AssertionError("it does not open")


def test_a_new_worker_serves_and_is_up_once_it_answers_anything():
    assert NEW.routable
    assert NEW.probe_answered(0.0).state is NEW.answer_began().state is Health.UP


def test_three_failed_probes_in_a_row_take_a_worker_down_and_one_answered_brings_it_back():
    health = UP
    for _ in range(FAILURES_MAX - 1):
        health = health.probe_failed()
        assert health.state is Health.SUSPECT
        assert health.probe_answered(0.0).failures == 0
    down = health.probe_failed()
    assert (down.state, down.routable, down.circuit_open) == (Health.DOWN, False, False)
    assert down.probe_answered(0.0).state is Health.UP


def test_probes_that_are_answered_do_not_hide_requests_that_fail():
    health = UP
    for _ in range(2):
        health = health.request_failed(0.0).probe_answered(0.0)
        assert health.state is Health.UP
    health = health.request_failed(0.0)
    assert (health.state, health.circuit_open) == (Health.DOWN, True)
    assert health.probe_answered(OPEN_SECONDS - 0.1).state is Health.DOWN


def test_about_half_of_many_requests_failing_is_too_much_and_a_tenth_is_not():
    half = tenth = UP
    for number in range(200):
        half = half.request_failed(0.0) if number % 2 else half.answer_began().answer_ended()
        tenth = tenth.request_failed(0.0) if number % 10 == 0 else tenth.answer_began().answer_ended()
    assert (half.circuit_open, tenth.circuit_open) == (True, False)


def test_after_a_while_it_is_on_trial_and_the_first_answer_closes_the_circuit():
    health = opened(now=10.0).probe_answered(10.0 + OPEN_SECONDS)
    assert (health.state, health.on_trial, health.circuit_open) == (Health.SUSPECT, True, False)
    assert health.probe_answered(99.0) == health
    answered = health.answer_began()
    assert (answered.state, answered.on_trial) == (Health.UP, False)


def test_a_trial_without_requests_ends_while_probes_are_answered():
    trial = opened().probe_answered(OPEN_SECONDS)
    over_at = OPEN_SECONDS + TRIAL_SECONDS
    assert trial.probe_answered(over_at - 0.1, idle=True) is trial
    assert trial.probe_answered(over_at, idle=False) is trial
    over = trial.probe_answered(over_at, idle=True)
    assert (over.state, over.on_trial) == (Health.UP, False)
    assert over.request_failed(over_at).circuit_open


def test_a_trial_that_fails_opens_it_although_older_streams_have_ended_meanwhile():
    trial = opened().probe_answered(OPEN_SECONDS)
    for _ in range(3):
        trial = trial.answer_ended()
    assert trial.request_failed(OPEN_SECONDS).circuit_open


def test_a_trial_that_fails_opens_it_for_twice_as_long_up_to_a_minute():
    now, health, waits = 0.0, UP, []
    for _ in range(8):
        health = opened(now, health)
        waits.append(health.open_until - now)
        now = health.open_until
        health = health.probe_answered(now)
        assert health.on_trial
    assert waits[:3] == [OPEN_SECONDS, 2 * OPEN_SECONDS, 4 * OPEN_SECONDS]
    assert waits[-1] == OPEN_SECONDS_MAX


def test_requests_that_fare_well_make_the_past_forgotten():
    health = opened().probe_answered(OPEN_SECONDS).answer_began()
    for _ in range(10):
        health = health.answer_ended()
    assert (health.strain, health.openings) == (0.0, 0)


def test_a_worker_that_breaks_every_answer_off_is_found_out_though_it_begins_each():
    health = UP
    for _ in range(3):
        health = health.answer_began().request_failed(0.0)
    assert health.circuit_open


def test_what_was_under_way_when_it_opened_and_fails_too_prolongs_nothing():
    health = opened(now=1.0)
    assert health.request_failed(3.0) == health


def test_a_probe_that_fails_closes_the_circuit_since_then_probes_decide():
    health = opened(now=0.0).probe_failed()
    assert (health.state, health.circuit_open) == (Health.DOWN, False)
    back = health.probe_answered(0.5)
    assert (back.state, back.on_trial) == (Health.UP, False)
    assert back.request_failed(0.6).circuit_open  # it is not trusted far


@pytest.mark.parametrize(
    "health", [UP, NEW, opened(), opened().probe_answered(OPEN_SECONDS)], ids=["up", "new", "open", "trial"]
)
def test_draining_is_left_by_nothing_but_resuming(health):
    draining = health.drained()
    after = draining.probe_answered(1.0).answer_began().request_failed(1.0).probe_failed().answer_ended()
    assert (after.state, after.routable) == (Health.DRAINING, False)
    assert after.resumed() == WorkerHealth()
    assert replace(health).resumed() == health
