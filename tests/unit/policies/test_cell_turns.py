"""The bounds of a cell's turns: who is held up, who is lifted, and that shares are equal across cells."""

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cell_turns import DEBT_LEADS, LEAD_WINDOWS, QueueProgress, TurnBounds, turn_bounds
from policies.queueing.protocol import QueueCounters, QueueOptions, Ticket
from policies.queueing.sfq import Sfq

WINDOW = 1000
IDLE = QueueProgress(0.0, 0.0)


def test_without_other_cells_nothing_is_bounded():
    assert turn_bounds(QueueProgress(500.0, 2.0), [], WINDOW) == TurnBounds()


def test_a_cell_may_be_ahead_of_the_last_one_that_waits_by_windows_divided_among_all_that_wait():
    others = [QueueProgress(700.0, 1.0), QueueProgress(900.0, 3.0), QueueProgress(100.0, 0.0)]
    bounds = turn_bounds(QueueProgress(800.0, 4.0), others, WINDOW)
    assert bounds.start_max == 700 + LEAD_WINDOWS * WINDOW / 8


def test_cells_in_which_no_request_waits_hold_up_no_other_cell():
    assert turn_bounds(QueueProgress(800.0, 4.0), [QueueProgress(1.0, 0.0)], WINDOW).start_max == inf


def test_a_cell_in_which_no_request_waits_has_no_credit_left():
    some_wait = [QueueProgress(700.0, 1.0), QueueProgress(900.0, 0.0)]
    assert turn_bounds(IDLE, some_wait, WINDOW).lift == 700
    none_waits = [QueueProgress(700.0, 0.0), QueueProgress(900.0, 0.0)]
    assert turn_bounds(IDLE, none_waits, WINDOW).lift == 900


def test_a_new_cell_in_which_requests_wait_holds_up_the_others_for_a_bounded_time_only():
    latest = 1e9
    bounds = turn_bounds(QueueProgress(0.0, 2.0), [QueueProgress(latest, 2.0)], WINDOW)
    assert bounds.lift == latest - DEBT_LEADS * LEAD_WINDOWS * WINDOW / 4


class PlainCell:
    """A cell in which all tenants always wait: its turns by `sfq`, and what each tenant has received."""

    def __init__(self, name, weights):
        self.policy = Sfq(QueueOptions())
        self.weights = {f"{name}{at}": weight for at, weight in enumerate(weights)}
        self.counters = QueueCounters()
        self.received = dict.fromkeys(self.weights, 0.0)

    @property
    def progress(self):
        return QueueProgress(self.counters.virtual_time, sum(self.weights.values()))

    def turn(self, bounds, cost):
        """Give a turn within the bounds; return whether there is one."""
        heads = [
            Ticket(number=at, tenant=tenant, weight=weight, cost=cost, arrived_at=0.0)
            for at, (tenant, weight) in enumerate(self.weights.items())
        ]
        turn = self.policy.next(self.counters, heads, 0.0)
        assert turn is not None
        tenant = turn.ticket.tenant
        if self.counters.tags.get(tenant, self.counters.virtual_time) > bounds.start_max:
            return False
        self.counters = turn.counters
        self.received[tenant] += cost
        return True


weights = st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=1, max_size=6)


@settings(max_examples=40)  # Each has hundreds of turns.
@given(cells=st.lists(weights, min_size=2, max_size=4), data=st.data())
def test_tenants_of_all_cells_receive_their_weights_share_however_often_a_cell_finds_room(cells, data):
    places = [PlainCell(f"cell {at} ", of) for at, of in enumerate(cells)]
    for _ in range(30):
        told = [cell.progress for cell in places]
        for at, cell in enumerate(places):
            others = told[:at] + told[at + 1 :]
            bounds = turn_bounds(told[at], others, WINDOW)
            room = data.draw(st.integers(0, 40))
            while room > 0 and cell.turn(bounds, data.draw(st.sampled_from([10.0, 100.0]))):
                room -= 1
    lead = LEAD_WINDOWS * WINDOW / sum(cell.progress.waiting_weight for cell in places)
    parts = [(cell.received[tenant] / w, 100 / w) for cell in places for tenant, w in cell.weights.items()]
    for part, cost in parts:
        for other, other_cost in parts:
            assert part - other <= lead + cost + other_cost + 1e-6
