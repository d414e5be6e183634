"""The shared queue as a plain model: the rules of its Lua functions by the policies' arithmetic, without Redis."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress

from msgspec.structs import replace

from gateway.queueing.shared.keys import BATCH
from gateway.queueing.shared.queue_messages import CellState, SharedPlacement, SharedRoute, SharedTicket
from policies.admission.closed_workers import ClosedWorkers
from policies.admission.dispatch_window import DispatchWindow
from policies.admission.hold import close_enough_to_best, hold_while_contended
from policies.admission.passed_over import VainLook, WorkerAhead
from policies.admission.search_bounds import PASSED_OVER_MAX, PASSED_OVER_OF_FLOW_MAX
from policies.admission.window_room import fits_window, leaves_one_open
from policies.cell_turns import UNBOUNDED, QueueProgress, TurnBounds
from policies.latency_model import tokens_counted
from policies.others_load import NO_TOTALS, LoadTotals
from policies.queueing.protocol import QueueCounters, Ticket
from policies.registry import queue_policy

GRANTS_MAX, WEIGHED_MAX = 8, 16


@dataclass
class QueuedRequest:
    """A request in the model: waiting, granted (its turn is given), placed, or answering."""

    ticket: SharedTicket
    state: str
    number: int = 0
    routes: list[SharedRoute] = field(default_factory=list)
    worker: str = ""
    tokens: int = 0
    vain_look: tuple[VainLook, bool] | None = None
    """What was seen when it was passed over, and whether only an idle worker would have done."""

    def as_ticket(self) -> Ticket:
        ticket = self.ticket
        return Ticket(
            number=self.number, tenant=ticket.tenant, cost=ticket.cost, weight=ticket.weight, arrived_at=0.0
        )


@dataclass
class GrantRound:
    """What one round of granting turns remembers."""

    passed_over: list[str] = field(default_factory=list)
    """Requests whose turn it was, but which do better to wait for a worker."""
    closed: ClosedWorkers = field(default_factory=ClosedWorkers)
    """The workers that requests passed over wait for; later requests may not take their room."""
    looks: int = 0
    """How many requests were looked at in vain."""


class QueueModel:
    """The state of the shared queue, changed by the same verbs as the Lua library."""

    def __init__(self, window: DispatchWindow, hold: float | None) -> None:
        self.hold = hold
        self.policy = queue_policy("sfq")
        self.window = window
        self.records: dict[str, QueuedRequest] = {}
        self.counters: dict[str, QueueCounters] = {}
        self.numbers: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.gateways: set[str] = set()
        self.ended: set[str] = set()
        self.turns: list[str] = []
        self.elsewhere: dict[str, LoadTotals] = {}
        """What other cells have on workers."""
        self.reported: dict[str, dict[str, LoadTotals]] = {}
        """What gateways placed by themselves, by gateway and worker."""
        self.bounds: dict[str, TurnBounds] = {}
        """What follows from the other cells' progress, by queue."""
        self.more = False
        self.vain_look: VainLook
        """Of the last call of `best` without a route."""

    # What can be seen.

    def own(self, worker: str) -> LoadTotals:
        """Return what this cell has on a worker."""
        here = [r for r in self.records.values() if r.worker == worker and r.state != "waiting"]
        own = LoadTotals(
            sum(r.tokens for r in here if r.state in ("granted", "placed")),
            len(here),
            sum(r.ticket.kv_tokens for r in here),
        )
        for sums in self.reported.values():
            own = own.plus(sums.get(worker, NO_TOTALS))
        return own

    def load(self, worker: str) -> LoadTotals:
        """Return what all cells have on a worker."""
        own, others = self.own(worker), self.elsewhere.get(worker, NO_TOTALS)
        return LoadTotals(
            own.tokens_queued + others.tokens_queued,
            own.streams + others.streams,
            own.kv_tokens + others.kv_tokens,
        )

    def tokens(self, worker: str) -> int:
        return self.load(worker).tokens_queued

    def ahead(self, worker: str) -> WorkerAhead:
        """Return what a look at a worker depends upon."""
        load = self.load(worker)
        return load.tokens_queued, self.own(worker).tokens_queued, load.streams

    def waiting(self, queue: str) -> list[str]:
        ids = [id for id, r in self.records.items() if r.ticket.queue == queue and r.state == "waiting"]
        return sorted(ids, key=lambda id: self.records[id].number)

    def waiting_of(self, id: str) -> int:
        """Return how many requests of this one's tenant wait in its queue."""
        ticket = self.records[id].ticket
        return sum(self.records[other].ticket.tenant == ticket.tenant for other in self.waiting(ticket.queue))

    def head(self, queue: str, passed_over: Sequence[str] = ()) -> str | None:
        """Return the request whose turn is next, leaving out those that were passed over."""
        turn = self._turn(queue, passed_over)
        return None if turn is None else self._standing(queue, passed_over)[turn.ticket.tenant]

    def best(
        self,
        routes: Sequence[SharedRoute],
        closed: ClosedWorkers,
        hold: float | None,
        *,
        is_narrow: bool = False,
        background: bool = False,
        target: float = 0.0,
        work_share: float = 0.0,
        ahead: bool = False,
    ) -> SharedRoute | None:
        """Return the cheapest route that is worth taking and has room.

        If there is none, the workers that the request waits for are added to `closed`. `is_narrow`: the narrow
        window applies; `ahead`: only an idle worker will do.
        """
        left_open = self.window.open_beside(is_narrow=is_narrow, work_share=work_share)
        patient = self.window.is_patient(target, is_narrow=is_narrow, work_share=work_share)
        if self.window.takes_dearer(is_narrow=is_narrow, patient=patient):
            hold = hold_while_contended(hold)
        asked = [(each.worker, each.uncached_tokens) for each in routes]
        chosen = list(compress(routes, self.window.choices(asked, patient=patient)))
        slots = {
            each.worker: self.window.slots_allowed(
                each.slots or None,
                background=background,
                is_narrow=is_narrow,
                work_share=work_share,
                for_urgent=self.window.keeps_for_urgent(each.worker, patient=patient),
            )
            for each in routes
        }
        has_slot = {worker: self.load(worker).streams < allowed for worker, allowed in slots.items()}
        if not self.window.waits_for_slots(patient=patient):
            chosen = [each for each in chosen if has_slot[each.worker]] or chosen

        def cost(route: SharedRoute) -> float:
            queued = tokens_counted(self.tokens(route.worker), route.queued_tokens, route.computed_tokens)
            return route.fixed_ms + route.ms_per_token * queued

        crowds = is_narrow and not background
        ranked, waited_for, kept_out = sorted(chosen, key=cost), [], []
        for route in ranked:
            if not close_enough_to_best(cost(route), cost(ranked[0]), hold):
                break
            tokens = self.window.tokens(route.worker, is_narrow=is_narrow, patient=patient)
            of_other_cells = self.elsewhere.get(route.worker, NO_TOTALS).tokens_queued
            taken = self.window.taken_by(route.uncached_tokens, is_narrow=is_narrow, patient=patient)
            fits = fits_window(self.tokens(route.worker), taken, tokens, of_other_cells)
            if ahead:
                fits = self.tokens(route.worker) == 0
            if fits and left_open is not None and self.window.is_long(route.uncached_tokens, tokens):
                fits = leaves_one_open(
                    (self.tokens(each.worker) for each in routes), left_open, background=background
                )
            fits = fits and has_slot[route.worker]
            if fits and closed.allows(route.worker, crowds=crowds):
                return route
            waited_for.append(route.worker)
            if fits:
                kept_out.append(route.worker)
        closed.close(waited_for, crowds=crowds)
        self.vain_look = VainLook(
            ahead={each.worker: self.ahead(each.worker) for each in routes},
            waits_for=frozenset(waited_for),
            closed=frozenset(kept_out),
            crowds=crowds,
            slots=slots,
        )
        return None

    def is_ahead(self, id: str) -> bool:
        """Return whether a request's turn is too far ahead of other cells."""
        ticket = self.records[id].ticket
        counters = self._counters(ticket.queue)
        start = counters.tags.get(ticket.tenant, counters.virtual_time)
        return start > self.bounds.get(ticket.queue, UNBOUNDED).start_max

    def progress(self, queue: str) -> QueueProgress:
        """Return how far a queue has come with its turns; only the first tenants are weighed."""
        counters, firsts = self._counters(queue), dict[str, SharedTicket]()
        for id in self.waiting(queue):
            firsts.setdefault(self.records[id].ticket.tenant, self.records[id].ticket)
        # Of equal tags the tenant goes first whose first ticket came first.
        in_order = sorted(firsts, key=lambda tenant: counters.tags.get(tenant, counters.virtual_time))
        weighed = [firsts[tenant].weight for tenant in in_order[:WEIGHED_MAX]]
        weight = sum(weighed) * len(firsts) / len(weighed) if weighed else 0
        return QueueProgress(counters.virtual_time, weight)

    def narrow_applies(self, queue: str, crowds: bool) -> bool:
        """Return whether the narrow window applies for batch work, or a tenant that has more requests waiting."""
        return queue.endswith(BATCH) or (self.window.contended and crowds)

    def next(
        self, queue: str, round: GrantRound, *, remembers: bool = True
    ) -> tuple[str, SharedRoute] | None:
        """Return the request that starts now and its route; requests that do better to wait are passed over.

        `remembers`: looks in vain count in later calls.
        """
        background = queue.endswith(BATCH)
        while (id := self.head(queue, round.passed_over)) is not None:
            record, is_ahead = self.records[id], self.is_ahead(id)
            is_narrow = self.narrow_applies(queue, self.waiting_of(id) > 1)
            if self.is_in_vain(record, round.closed, is_ahead, crowds=is_narrow and not background):
                if not self.may_pass_over(round):
                    return None
                round.passed_over.append(id)
                continue
            route = self.best(
                record.routes,
                round.closed,
                self.hold,
                is_narrow=is_narrow,
                background=background,
                target=record.ticket.target_seconds,
                work_share=record.ticket.work_share,
                ahead=is_ahead,
            )
            if route is not None:
                return id, route
            if remembers:
                record.vain_look = self.vain_look, is_ahead
            if round.looks == PASSED_OVER_MAX or not self.may_pass_over(round):
                return None
            round.looks += 1
            round.passed_over.append(id)
        return None

    def may_pass_over(self, round: GrantRound) -> bool:
        """Return whether a round goes on behind one more request."""
        return self.hold is not None and len(round.passed_over) < self.window.passed_over_max

    def is_in_vain(
        self, record: QueuedRequest, closed: ClosedWorkers, is_ahead: bool, *, crowds: bool
    ) -> bool:
        """Return whether a look is known to be in vain; the workers that the request waits for are then closed."""
        if record.vain_look is None or record.vain_look[1] != is_ahead:
            return False
        look = record.vain_look[0]
        if not look.holds(self.ahead, closed, crowds=crowds):
            return False
        closed.close(look.waits_for, crowds=crowds)
        return True

    def behind(self, queue: str, queues: Sequence[str]) -> bool:
        """Return whether a request waits that goes before this queue of batch work."""
        others = (other for other in queues if not other.endswith(BATCH))
        return queue.endswith(BATCH) and any(self.waiting(other) for other in others)

    # The verbs.

    def admit(self, gateway, ticket, routes, before=()):
        if gateway not in self.gateways:
            return -2, ""
        if ticket.id in self.ended:
            return -1, ""
        known = self.records.get(ticket.id)
        if known is None:
            number = self.numbers[ticket.queue] = self.numbers.get(ticket.queue, 0) + 1
            record = QueuedRequest(ticket, "waiting", number, list(routes))
            others = [self.records[id].as_ticket() for id in self.waiting(ticket.queue)]
            counters = self.policy.arrive(self._counters(ticket.queue), record.as_ticket(), others)
            self.records[ticket.id], self.counters[ticket.queue] = record, counters
            self._grant([ticket.queue, *before], ticket.id)
        elif known.state == "waiting":
            known.routes, known.vain_look = list(routes), None
            self._grant([ticket.queue, *before], ticket.id)
        else:
            self.more = False
        record = self.records[ticket.id]
        if record.state == "granted":
            record.state = "placed"
        return (1, record.worker) if record.state in ("placed", "answering") else (0, "")

    def spare(self, gateway, ticket, queues, routes):
        if gateway not in self.gateways:
            return -2, ""
        if ticket.id not in self.records:
            waited_for = any(self.waiting(queue) for queue in queues if not queue.endswith(BATCH))
            background = ticket.queue.endswith(BATCH)
            route = (
                None
                if waited_for
                else self.best(
                    routes,
                    ClosedWorkers(),
                    None,
                    background=background,
                    target=ticket.target_seconds,
                    work_share=ticket.work_share,
                )
            )
            if route is None:
                return 0, ""
            self.records[ticket.id] = QueuedRequest(
                ticket, "placed", worker=route.worker, tokens=route.uncached_tokens
            )
        return 1, self.records[ticket.id].worker

    def claim(self, gateway, queues, id, other, routes):
        if gateway not in self.gateways:
            return -2, "", ""
        record = self.records.get(id)
        self.more = False
        if record is not None and record.state == "placed":
            return 1, id, record.worker
        if record is None or record.state != "granted":
            return -1, "", ""
        queue = record.ticket.queue
        swapped = self.records.get(other) if other else None
        if swapped and (
            swapped.state != "waiting"
            or (swapped.ticket.tenant, swapped.ticket.queue) != (record.ticket.tenant, queue)
        ):
            swapped = None
        is_narrow = self.narrow_applies(queue, self.waiting_of(id) > 0)
        record.state = "waiting"  # its load is free for a moment
        worker, tokens, record.worker = record.worker, record.tokens, ""
        route = None
        if swapped or not other:
            route = self.best(
                routes,
                ClosedWorkers(),
                self.hold,
                is_narrow=is_narrow,
                background=queue.endswith(BATCH),
                target=(swapped or record).ticket.target_seconds,
                work_share=(swapped or record).ticket.work_share,
            )
        goes = id
        if swapped and route:
            goes = other
            record.routes, record.vain_look = [SharedRoute(worker, tokens, 0.0, 0.0)], None
            self._charge(queue, record, swapped.ticket.cost - record.ticket.cost)
            record = swapped
        record.state = "placed"
        record.worker, record.tokens = (route.worker, route.uncached_tokens) if route else (worker, tokens)
        self._grant(queues)
        return 1, goes, record.worker

    def release(self, gateway, queues, id, what, change):
        if gateway not in self.gateways:
            return -2
        self.more = False
        if what == "end":
            self.ended.add(id)
        record = self.records.get(id)
        if record is None:
            return 0
        if what == "end":
            self._drop(id, change)
        elif record.state == "placed":
            record.state = "answering"
        self._grant(queues)
        return 1

    def expire(self, gateway, queues, everything):
        if gateway not in self.gateways:
            return -2
        for id, record in list(self.records.items()):
            if everything and record.state == "granted":
                self._drop(id, 0.0)
        self._grant(queues)
        return 1

    def cells(self, gateway, queues, others, bounds):
        if gateway not in self.gateways:
            return None
        self.elsewhere, self.bounds = dict(others), dict(bounds)
        for queue, of_queue in bounds.items():
            counters = self._counters(queue)
            lifted = max(counters.virtual_time, of_queue.lift)
            self.counters[queue] = counters.with_tags({}, virtual_time=lifted)
        self._grant(queues)
        workers = {r.worker for r in self.records.values() if r.state != "waiting"}
        workers |= {worker for sums in self.reported.values() for worker in sums}
        loads = {worker: self.own(worker) for worker in workers}
        progress = {queue: self.progress(queue) for queue in queues}
        return CellState(loads=loads, progress=progress)

    def reap(self, gateway, queues, dead):
        if gateway not in self.gateways:
            return -2
        for id in [id for id in self.records if id.startswith(f"{dead}:")]:
            self._drop(id, 0.0)
        self.reported.pop(dead, None)
        self.gateways.discard(dead)
        self._grant(queues)
        return 1

    def report(self, gateway, queues, sums, charges):
        """Return how many tenants wait in each queue, and the tags of the tenants that are charged."""
        if gateway not in self.gateways:
            return None
        here = self.reported.setdefault(gateway, {})
        for worker, load in sums.items():
            here.pop(worker, None)
            if load.streams:
                here[worker] = load
        tags = []
        for charge in charges:
            counters, cost = self._counters(charge.queue), charge.cost
            virtual_time = counters.virtual_time
            tag = counters.tags.get(charge.tenant, virtual_time)
            if cost and not self.waiting(charge.queue):
                virtual_time = tag = max(virtual_time, tag)
            tag += cost + charge.change
            self.counters[charge.queue] = counters.with_tags({charge.tenant: tag}, virtual_time=virtual_time)
            tags.append((virtual_time, tag))
        self._grant(queues)
        waiting = (len({self.records[id].ticket.tenant for id in self.waiting(queue)}) for queue in queues)
        return tuple(waiting), tags

    def join(self, gateway, queues, places: Sequence[SharedPlacement], services):
        self.gateways.add(gateway)
        self.reported.pop(gateway, None)
        for id in [id for id in self.records if id.startswith(f"{gateway}:")]:
            self._drop(id, 0.0)
        for place in places:
            if place.ticket.id not in self.ended:
                state = "placed" if place.uncached_tokens else "answering"
                self.records[place.ticket.id] = QueuedRequest(
                    place.ticket, state, worker=place.worker, tokens=place.uncached_tokens
                )
        for queue, tenant, units in services:
            counters = self._counters(queue)
            tag = counters.tags.get(tenant, counters.virtual_time)
            self.counters[queue] = counters.with_tags({tenant: tag + units})
        self._grant(queues)
        return 1

    # Further down.

    def _counters(self, queue):
        return self.counters.setdefault(queue, QueueCounters())

    def _standing(self, queue, passed_over):
        """Return the first request of each tenant that was not passed over.

        Tenants of whom too many requests were passed over are left out.
        """
        by_tenant = Counter(self.records[id].ticket.tenant for id in passed_over)
        standing: dict[str, str] = {}
        for id in self.waiting(queue):
            tenant = self.records[id].ticket.tenant
            if id not in passed_over and by_tenant[tenant] < PASSED_OVER_OF_FLOW_MAX:
                standing.setdefault(tenant, id)
        return standing

    def _turn(self, queue, passed_over=()):
        # Of equal tags the tenant goes first whose first ticket, passed over or not, came first.
        firsts: dict[str, int] = {}
        for id in self.waiting(queue):
            firsts.setdefault(self.records[id].ticket.tenant, self.records[id].number)
        heads = [
            replace(self.records[id].as_ticket(), number=firsts[tenant])
            for tenant, id in self._standing(queue, passed_over).items()
        ]
        return self.policy.next(self._counters(queue), heads, 0.0)

    def _grant(self, queues, mine=None):
        given = 0
        for background in (False, True):
            left = [
                queue
                for queue in queues
                if queue.endswith(BATCH) == background
                and self.waiting(queue)
                and not self.behind(queue, queues)
            ]
            left.sort(key=lambda queue: self.last.get(queue, 0))
            several, last = len(left) > 1, max((self.last.get(queue, 0) for queue in left), default=0)
            rounds = {queue: GrantRound() for queue in left}
            while left and given < GRANTS_MAX:
                queue = left.pop(0)
                round = rounds[queue]
                found = self.next(queue, round)
                if found is None:
                    continue
                left.append(queue)
                if several:
                    last += 1
                    self.last[queue] = last
                id, route = found
                self.counters[queue] = self._turn(queue, round.passed_over).counters
                record = self.records[id]
                record.worker, record.tokens, record.vain_look = route.worker, route.uncached_tokens, None
                record.state = "placed" if id == mine else "granted"
                if id != mine:
                    self.turns.append(id)
                given += 1
        self.more = given == GRANTS_MAX

    def _charge(self, queue, record, cost):
        self.counters[queue] = self.policy.correct(self._counters(queue), record.as_ticket(), cost)

    def _drop(self, id, change):
        record = self.records.pop(id)
        if record.state == "granted":
            change = -record.ticket.cost
        if record.state != "waiting" and change:
            self._charge(record.ticket.queue, record, change)
