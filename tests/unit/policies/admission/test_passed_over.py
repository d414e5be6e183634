"""When a request that was passed over is looked at again."""

from dataclasses import replace

import pytest

from policies.admission.closed_workers import ClosedWorkers
from policies.admission.dispatch_window import DispatchWindow
from policies.admission.passed_over import VainLook, is_no_wider

LOOK = VainLook(
    ahead={"best": (100, 60, 2), "other": (50, 50, 2)},
    waits_for=frozenset({"best"}),
    closed=frozenset(),
    crowds=False,
)
WINDOW = DispatchWindow(narrow=60, wide=100, open=30)


@pytest.mark.parametrize(
    ("worker", "ahead", "holds"),
    [
        ("best", (100, 60, 1), True),
        ("best", (90, 60, 1), False),
        ("best", (110, 60, 1), False),
        ("best", (100, 0, 1), False),
        ("other", (60, 60, 1), True),
        ("other", (40, 40, 1), False),
        ("other", (50, 0, 1), False),
    ],
    ids=[
        "nothing changed",
        "it has room",
        "it is dearer",
        "all there is of other cells",
        "another one is dearer",
        "another one is cheaper",
        "all on another one is of other cells",
    ],
)
def test_a_look_is_worth_it_again_when_a_worker_has_changed_that_may_help(worker, ahead, holds):
    now = LOOK.ahead | {worker: ahead}
    assert LOOK.holds(now.__getitem__, ClosedWorkers(), crowds=False) is holds


def test_a_worker_that_was_closed_and_no_longer_is_may_help():
    look = VainLook(
        ahead={"open": (0, 0, 0)}, waits_for=frozenset({"open"}), closed=frozenset({"open"}), crowds=False
    )
    closed = ClosedWorkers()
    closed.close(["open"], crowds=False)
    assert look.holds(look.ahead.__getitem__, closed, crowds=False)
    assert not look.holds(look.ahead.__getitem__, ClosedWorkers(), crowds=False)


def test_a_tenant_without_further_requests_has_another_window():
    assert not LOOK.holds(LOOK.ahead.__getitem__, ClosedWorkers(), crowds=True)


@pytest.mark.parametrize(
    ("window", "no_wider"),
    [
        (WINDOW, True),
        (DispatchWindow(narrow=50, wide=90, open=20), True),
        (DispatchWindow(narrow=61, wide=100, open=30), False),
        (DispatchWindow(narrow=60, wide=100, open=31), False),
        (DispatchWindow(narrow=60, wide=100), False),
        (DispatchWindow(narrow=60, wide=100, open=30, contended=True), False),
    ],
)
def test_a_wider_window_may_help(window, no_wider):
    assert is_no_wider(window, WINDOW) is no_wider


@pytest.mark.parametrize(
    ("slots", "streams", "holds"), [(2, 1, False), (2, 3, True), (3, 2, True), (3, 3, False)]
)
def test_a_slot_that_becomes_free_or_is_taken_may_help(slots, streams, holds):
    now = {worker: (tokens, own, streams) for worker, (tokens, own, _) in LOOK.ahead.items()}
    assert LOOK.holds(now.__getitem__, ClosedWorkers(), crowds=False)
    look = replace(LOOK, slots={"best": slots})
    assert look.holds(now.__getitem__, ClosedWorkers(), crowds=False) is holds
