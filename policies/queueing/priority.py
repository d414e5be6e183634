"""Queue policy `priority`: service classes in their order, with reserved shares for lower classes, and ageing.

    voice > code > chat > batch          a class that waits gets at least its reserved share of the work
    waited `ageing_seconds`: one up      so that no request waits for ever

A class that has received less than its reserved share goes first; of several, the one that lags most. Else the
highest class goes, where a ticket counts as one class higher for every `ageing_seconds` it has waited. Inside a
class the tenants take turns by start-time fair queueing (see sfq.py), so that no tenant has a class for itself.

For a class that waits all the time and has a share, share * (all work) - (its work) never exceeds U (U: largest
cost of one request, cost units). No ticket is passed over for more than (classes - 1) * `ageing_seconds` by later
ones of a higher class, reserved shares apart.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta, field

from policies.queueing.protocol import QueueCounters, QueueOptions, QueueTurn, Ticket

CLASSES = ("voice", "code", "chat", "batch")


class PriorityOptions(QueueOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the policy `priority`."""

    order: Annotated[tuple[str, ...], Meta(description="Service classes, the most urgent first.")] = CLASSES
    reserved: Annotated[
        dict[str, float],
        Meta(description="Share of the work that a class gets at least while its requests wait."),
    ] = field(default_factory=lambda: {"chat": 0.2, "batch": 0.05})
    ageing_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)],
        Meta(description="Seconds of waiting after which a request counts as one class higher."),
    ] = 5.0

    def __post_init__(self) -> None:
        if not self.order:
            raise ValueError("there has to be a class")
        if any(not 0 < share < 1 for share in self.reserved.values()) or sum(self.reserved.values()) > 1:
            raise ValueError("reserved shares lie between 0 and 1, and are at most 1 together")
        if unknown := self.reserved.keys() - set(self.order):
            raise ValueError(f"reserved for a class that has no place in the order: {sorted(unknown)[0]}")


class Priority:
    """The policy `priority`.

    `QueueCounters.virtual_time` is all work given out, in cost units. Tags: "share CLASS" (work of the class over
    its reserved share), "time CLASS" (virtual time of the class), "CLASS TENANT" (finish tag of a tenant in a
    class).
    """

    name: ClassVar[str] = "priority"
    options_type: ClassVar[type[QueueOptions]] = PriorityOptions

    def __init__(self, options: PriorityOptions) -> None:
        self.options = options
        self._levels = {name: at for at, name in enumerate(options.order)}

    def arrive(self, counters: QueueCounters, ticket: Ticket, waiting: Sequence[Ticket]) -> QueueCounters:
        """Lift an idle class, and an idle tenant within its class, to where the others are."""
        tags, lifted = counters.tags, {}
        peers = [other for other in waiting if other.service_class == ticket.service_class]
        if not peers:
            share = _share(ticket)
            lifted[share] = max(tags.get(share, counters.virtual_time), counters.virtual_time)
        if all(other.tenant != ticket.tenant for other in peers):
            virtual_time = tags.get(_time(ticket), 0.0)
            lifted[_tenant(ticket)] = max(tags.get(_tenant(ticket), virtual_time), virtual_time)
        return counters.with_tags(lifted, keep=self._of_classes(ticket)) if lifted else counters

    def next(self, counters: QueueCounters, waiting: Sequence[Ticket], now: float) -> QueueTurn | None:
        """Give the turn to a class that is short of its reserved share, else to the highest class."""
        if not waiting:
            return None
        ticket = self._chosen(counters, waiting, now)
        tags, virtual_time = counters.tags, counters.tags.get(_time(ticket), 0.0)
        start = tags.get(_tenant(ticket), virtual_time)
        changed = {
            _tenant(ticket): start + ticket.cost / ticket.weight,
            _time(ticket): max(virtual_time, start),
        }
        return QueueTurn(ticket=ticket, counters=self._charged(counters, ticket, ticket.cost, changed))

    def correct(self, counters: QueueCounters, ticket: Ticket, cost_change: float) -> QueueCounters:
        """Charge the class and the tenant with the cost that was not foreseen."""
        virtual_time = counters.tags.get(_time(ticket), 0.0)
        finish = counters.tags.get(_tenant(ticket), virtual_time) + cost_change / ticket.weight
        return self._charged(counters, ticket, cost_change, {_tenant(ticket): finish})

    def _charged(
        self, counters: QueueCounters, ticket: Ticket, cost: float, changed: dict[str, float]
    ) -> QueueCounters:
        share = self.options.reserved.get(ticket.service_class)
        if share is not None:
            before = counters.tags.get(_share(ticket), counters.virtual_time)
            changed[_share(ticket)] = before + cost / share
        work = counters.virtual_time + cost
        return counters.with_tags(changed, virtual_time=work, keep=self._of_classes(ticket))

    def _of_classes(self, ticket: Ticket) -> list[str]:
        """Return the names of the tags that belong to classes, not tenants."""
        names = {*self.options.order, ticket.service_class}
        return [f"{kind} {name}" for kind in ("share", "time") for name in names]

    def _chosen(self, counters: QueueCounters, waiting: Sequence[Ticket], now: float) -> Ticket:
        tags, work = counters.tags, counters.virtual_time
        lags = {
            ticket.service_class: tags.get(_share(ticket), work)
            for ticket in waiting
            if ticket.service_class in self.options.reserved
        }
        lagging = min(lags, key=lambda name: lags[name], default=None)
        if lagging is not None and lags[lagging] < work:
            waiting = [ticket for ticket in waiting if ticket.service_class == lagging]

        def level(ticket: Ticket) -> int:
            own = self._levels.get(ticket.service_class, len(self._levels) - 1)
            aged = int(max(0.0, now - ticket.arrived_at) / self.options.ageing_seconds)
            return max(0, own - aged)

        highest = min(map(level, waiting))
        equal = [ticket for ticket in waiting if level(ticket) == highest]
        oldest = min(equal, key=lambda ticket: ticket.number).service_class

        def order(ticket: Ticket) -> tuple[float, int]:
            return tags.get(_tenant(ticket), tags.get(_time(ticket), 0.0)), ticket.number

        return min((ticket for ticket in equal if ticket.service_class == oldest), key=order)


def _share(ticket: Ticket) -> str:
    return f"share {ticket.service_class}"


def _time(ticket: Ticket) -> str:
    """Return the name of the tag with the virtual time of the ticket's class."""
    return f"time {ticket.service_class}"


def _tenant(ticket: Ticket) -> str:
    return f"{ticket.service_class} {ticket.tenant}"
