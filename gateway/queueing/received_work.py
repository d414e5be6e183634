"""The work that got its turn in a waiting room: each tenant's part of it, and how fast it goes out."""

from collections.abc import Callable, Sequence

from policies.admission.waiting_bounds import DrainRate, retry_after_seconds
from policies.queueing.fairness_account import FairnessAccount
from policies.queueing.protocol import Ticket


class ReceivedWork:
    """The work that the tenants of one waiting room have received. `clock`: seconds, never backwards."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.account = FairnessAccount()
        """What each tenant has received, and was due."""
        self._drained = DrainRate()
        self._clock = clock

    def record(self, ticket: Ticket, now: float) -> None:
        """Record that a request got its turn."""
        self._drained.record(now, ticket.cost)
        self.account.record(ticket.tenant, ticket.weight, ticket.cost, now)

    def correct(self, ticket: Ticket, cost_change: float) -> None:
        """Correct the cost of a request that had its turn by this many units."""
        if cost_change:
            self.account.record(ticket.tenant, ticket.weight, cost_change, self._clock())

    def units_per_second(self) -> float:
        """Return the cost units that lately got their turn per second; 0 where nothing is known."""
        return self._drained.per_second(self._clock())

    def evenness(self) -> float:
        """Return how evenly tenants were served; see FairnessAccount."""
        return self.account.evenness(self._clock())

    def retry_after(self, waiting: Sequence[Ticket], tenant: str | None, seconds_max: float) -> float:
        """Return the seconds until what waits has had its turn: of one tenant at its share, or of all tenants."""
        units, rate = sum(ticket.cost for ticket in waiting), self.units_per_second()
        weights = {ticket.tenant: ticket.weight for ticket in waiting}
        if tenant in weights:
            units = sum(ticket.cost for ticket in waiting if ticket.tenant == tenant)
            rate *= weights[tenant] / sum(weights.values())
        return retry_after_seconds(units, rate, seconds_max)
