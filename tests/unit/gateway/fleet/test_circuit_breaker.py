"""The transitions of a worker's health: probes, requests, the circuit, and operators."""

from dataclasses import replace

import pytest

from gateway.fleet.circuit_breaker import (
    FAILURES_MAX,
    OPEN_SECONDS,
    OPEN_SECONDS_MAX,
    TRIAL_SECONDS,
    HealthState,
)
from workers.worker import Health

UP = HealthState(Health.UP)
NEW = HealthState()


def opened(now: float = 0.0, state: HealthState = UP) -> HealthState:
    """Requests fail until the circuit opens, between probes that are answered."""
    for _ in range(20):
        state = state.request_failed(now)
        if state.circuit_open:
            return state
        state = state.probe_answered(now)
    raise AssertionError("it does not open")


def test_a_new_worker_serves_and_is_up_once_it_answers_anything():
    assert NEW.routable
    assert NEW.probe_answered(0.0).health is NEW.answer_began().health is Health.UP


def test_three_failed_probes_in_a_row_take_a_worker_down_and_one_answered_brings_it_back():
    state = UP
    for _ in range(FAILURES_MAX - 1):
        state = state.probe_failed()
        assert state.health is Health.SUSPECT
        assert state.probe_answered(0.0).failures == 0
    down = state.probe_failed()
    assert (down.health, down.routable, down.circuit_open) == (Health.DOWN, False, False)
    assert down.probe_answered(0.0).health is Health.UP


def test_probes_that_are_answered_do_not_hide_requests_that_fail():
    state = UP
    for _ in range(2):
        state = state.request_failed(0.0).probe_answered(0.0)
        assert state.health is Health.UP
    state = state.request_failed(0.0)
    assert (state.health, state.circuit_open) == (Health.DOWN, True)
    assert state.probe_answered(OPEN_SECONDS - 0.1).health is Health.DOWN


def test_about_half_of_many_requests_failing_is_too_much_and_a_tenth_is_not():
    half = tenth = UP
    for number in range(200):
        half = half.request_failed(0.0) if number % 2 else half.answer_began().answer_ended()
        tenth = tenth.request_failed(0.0) if number % 10 == 0 else tenth.answer_began().answer_ended()
    assert (half.circuit_open, tenth.circuit_open) == (True, False)


def test_after_a_while_it_is_on_trial_and_the_first_answer_closes_the_circuit():
    state = opened(now=10.0).probe_answered(10.0 + OPEN_SECONDS)
    assert (state.health, state.on_trial, state.circuit_open) == (Health.SUSPECT, True, False)
    assert state.probe_answered(99.0) == state
    answered = state.answer_began()
    assert (answered.health, answered.on_trial) == (Health.UP, False)


def test_a_trial_without_requests_ends_while_probes_are_answered():
    trial = opened().probe_answered(OPEN_SECONDS)
    over_at = OPEN_SECONDS + TRIAL_SECONDS
    assert trial.probe_answered(over_at - 0.1, idle=True) is trial
    assert trial.probe_answered(over_at, idle=False) is trial
    over = trial.probe_answered(over_at, idle=True)
    assert (over.health, over.on_trial) == (Health.UP, False)
    assert over.request_failed(over_at).circuit_open


def test_a_trial_that_fails_opens_it_although_older_streams_have_ended_meanwhile():
    trial = opened().probe_answered(OPEN_SECONDS)
    for _ in range(3):
        trial = trial.answer_ended()
    assert trial.request_failed(OPEN_SECONDS).circuit_open


def test_a_trial_that_fails_opens_it_for_twice_as_long_up_to_a_minute():
    now, state, waits = 0.0, UP, []
    for _ in range(8):
        state = opened(now, state)
        waits.append(state.open_until - now)
        now = state.open_until
        state = state.probe_answered(now)
        assert state.on_trial
    assert waits[:3] == [OPEN_SECONDS, 2 * OPEN_SECONDS, 4 * OPEN_SECONDS]
    assert waits[-1] == OPEN_SECONDS_MAX


def test_requests_that_fare_well_make_the_past_forgotten():
    state = opened().probe_answered(OPEN_SECONDS).answer_began()
    for _ in range(10):
        state = state.answer_ended()
    assert (state.strain, state.openings) == (0.0, 0)


def test_a_worker_that_breaks_every_answer_off_is_found_out_though_it_begins_each():
    state = UP
    for _ in range(3):
        state = state.answer_began().request_failed(0.0)
    assert state.circuit_open


def test_what_was_under_way_when_it_opened_and_fails_too_prolongs_nothing():
    state = opened(now=1.0)
    assert state.request_failed(3.0) == state


def test_a_probe_that_fails_closes_the_circuit_for_then_the_probes_know_best():
    state = opened(now=0.0).probe_failed()
    assert (state.health, state.circuit_open) == (Health.DOWN, False)
    back = state.probe_answered(0.5)
    assert (back.health, back.on_trial) == (Health.UP, False)
    assert back.request_failed(0.6).circuit_open  # it is not trusted far


@pytest.mark.parametrize(
    "state", [UP, NEW, opened(), opened().probe_answered(OPEN_SECONDS)], ids=["up", "new", "open", "trial"]
)
def test_draining_is_left_by_nothing_but_resuming(state):
    draining = state.drained()
    after = draining.probe_answered(1.0).answer_began().request_failed(1.0).probe_failed().answer_ended()
    assert (after.health, after.routable) == (Health.DRAINING, False)
    assert after.resumed() == HealthState()
    assert replace(state).resumed() == state
