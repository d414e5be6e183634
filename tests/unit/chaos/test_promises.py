"""The checks of chaos runs: each of them can fail."""

import pytest

from tests.chaos.faults import Fault, nothing
from tests.chaos.load import Tally
from tests.chaos.promises import LEASES_AHEAD_MAX, Injection, charges, seen_by_clients
from tests.chaos.scene import AMOUNTS

CALM = Fault(name="x", inject=nothing, heal=nothing)
CUTTING = Fault(name="x", inject=nothing, heal=nothing, cuts=True)
KILLING = Fault(name="x", inject=nothing, heal=nothing, kills_gateway=True)
FORGETTING = Fault(name="x", inject=nothing, heal=nothing, forgets_quotas=True)


def charged(requests, tokens):
    return dict(zip(AMOUNTS, (requests, tokens), strict=True))


@pytest.mark.parametrize(
    ("fault", "requests", "tokens", "kept"),
    [
        (CALM, 10, 500, True),
        (CALM, 9, 500, False),
        (CALM, 11, 500, False),
        (CALM, 10, 499, False),
        (CALM, 10, 501, False),
        (CUTTING, 12, 540, True),
        (CUTTING, 13, 540, False),
        (KILLING, 13, 900, True),
        (KILLING, 16, 900, False),
        (KILLING, 13, 400, False),
        (FORGETTING, 16, 100, True),
        (FORGETTING, 13 - LEASES_AHEAD_MAX, 100, True),
        (FORGETTING, 12 - LEASES_AHEAD_MAX, 100, False),
        (FORGETTING, 17, 100, False),
    ],
)
def test_charges_are_what_clients_were_answered(fault, requests, tokens, kept):
    answered = 20 if fault is FORGETTING else 10
    tally = Tally(requests=answered, answered=answered, tokens=500)
    tally.cut = 2 if fault is CUTTING else 0
    tally.retried, tally.excused = (3, 2) if fault is KILLING else (0, 0)
    injection = Injection(answered_before=4, begun=7)
    wrong = charges(fault, tally, charged(0, 0), charged(requests, tokens), injection)
    assert (not wrong) is kept, wrong


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"failed": ["503"]}, False),
        ({"silent": ["no frame"]}, False),
        ({"cut": 1}, False),
        ({"retried": 1}, False),
        ({"excused": 1}, False),
        ({"answered": 0}, False),
    ],
)
def test_clients_may_get_the_errors_that_a_fault_allows_and_no_more(changes, kept):
    assert (not seen_by_clients(CALM, Tally(**{"answered": 5, **changes}))) is kept


def test_a_killed_gateway_excuses_what_it_took_with_it_and_a_failed_worker_what_it_had_begun():
    assert not seen_by_clients(KILLING, Tally(answered=5, retried=1, excused=1))
    assert not seen_by_clients(CUTTING, Tally(answered=5, cut=1))
    assert seen_by_clients(KILLING, Tally(answered=5, cut=1))
