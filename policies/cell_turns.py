"""Turns of one queue in several cells: no cell gets far ahead of another one in which requests wait.

Each cell gives turns to its own tenants by start-time fair queueing (policies/queueing/sfq.py). It publishes its
virtual time v and the weight of its tenants that wait. Virtual time is work by weight: where it is equal in all
cells, tenants that wait have received as much as in one queue. What follows for a cell from the states of the
others:

    floor = the least v of the other cells in which requests wait
    lead  = LEAD_WINDOWS of all workers / weight of all tenants that wait

    a start tag above floor + lead   goes to an idle worker only: no worker stays idle to let others catch up
    no request waits here            v is lifted to the floor, or to the largest v if no request waits elsewhere
                                     either: idle time earns a cell no credit
    requests wait here               v is lifted to DEBT_LEADS leads below the largest v: a new cell, and one whose
                                     requests wait for a worker that never has room, hold up the others only so long

Two tenants that wait all the time in different cells have then received, but for what no other request wanted,

    |W1/w1 - W2/w2| <= lead + c1/w1 + c2/w2                        W, w, c as in sfq.py

Source: queues that keep their virtual times close to each other, as the coordinators of a distributed store do in
Wang and Merchant: Proportional-share scheduling for distributed storage systems (FAST 2007).
"""

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

LEAD_WINDOWS = 4.0
"""Windows of every worker by which a cell may be ahead: what workers compute until all cells' states have arrived.

With 2 a tenth fewer requests are sent in an overload; with 8 shares are less even where few tenants wait.
"""

DEBT_LEADS = 10.0
"""Leads by which a cell in which requests wait may be behind."""


class QueueProgress(NamedTuple):
    """How far one cell has come with the turns of a queue."""

    virtual_time: float
    """In cost units by weight."""
    waiting_weight: float
    """The sum of the weights of its tenants that wait; 0: no request waits."""


class TurnBounds(NamedTuple):
    """What follows for one cell from the progress of the others."""

    lift: float = 0.0
    """Its virtual time is at least this."""
    start_max: float = inf
    """The largest start tag of a request that may go to a worker which is not idle."""


UNBOUNDED = TurnBounds()


def turn_bounds(own: QueueProgress, others: Iterable[QueueProgress], window_tokens: float) -> TurnBounds:
    """Return the bounds of a cell's turns; `window_tokens`: of all workers together."""
    latest, floor, weight = 0.0, inf, own.waiting_weight
    for other in others:
        latest = max(latest, other.virtual_time)
        if other.waiting_weight > 0:
            floor = min(floor, other.virtual_time)
            weight += other.waiting_weight
    lead = LEAD_WINDOWS * window_tokens / weight if weight > 0 else inf
    if own.waiting_weight > 0:
        return TurnBounds(lift=max(0.0, latest - DEBT_LEADS * lead), start_max=floor + lead)
    return TurnBounds(lift=min(floor, latest), start_max=floor + lead)
