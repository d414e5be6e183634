"""The occupancy of a waiting room: how many requests wait in it, of which tenants, and when a full one refuses."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.domain.errors import Overloaded, TenantQueueFull
from policies.admission.waiting_bounds import NONE_WAITING, WaitingRoomBounds, WaitingTotals, refused_by
from policies.queueing.fairness_account import FairnessAccount
from policies.queueing.protocol import Ticket


class RoomOccupancy:
    """The requests that wait in one waiting room, counted against its bounds."""

    def __init__(
        self, bounds: WaitingRoomBounds, account: FairnessAccount, clock: Callable[[], float]
    ) -> None:
        self.totals = NONE_WAITING
        """All requests that wait here."""
        self.classes: set[str] = set()
        """The service classes that have waited here."""
        self.standing_since: dict[str, float] = {}
        """By service class of which requests wait: since when at least one has waited without a break."""
        self.bounds = bounds
        """For requests that arrive from now on."""
        self._account = account
        self._clock = clock
        self.of_tenants: dict[str, WaitingTotals] = {}
        """What waits of each tenant that has requests waiting."""
        self._not_at_once: dict[str, set[int]] = {}
        """By service class: the tickets that did not have their turn at once."""

    @contextmanager
    def taken(self, ticket: Ticket, retry_after: Callable[[str | None], float]) -> Iterator[None]:
        """Count the ticket for as long as the context lasts.

        `retry_after` returns the seconds after which a tenant, or with None any tenant, may try again.
        Raises TenantQueueFull, Overloaded.
        """
        tenant, tokens = ticket.tenant, ticket.uncached_tokens
        own = self.of_tenants.get(tenant, NONE_WAITING)
        tenants = len(self.of_tenants) + (tenant not in self.of_tenants)
        bound = refused_by(self.bounds, self.totals, own, tenants, tokens)
        if bound == "tenant":
            raise TenantQueueFull(retry_after(tenant))
        if bound is not None:
            raise Overloaded(retry_after(None))
        self._count(tenant, 1, tokens)
        try:
            yield
        finally:
            self._count(tenant, -1, -tokens)
            if ticket.number in self._not_at_once.get(ticket.service_class, ()):
                self._waits_no_more(ticket)

    def correct(self, before: Ticket, ticket: Ticket) -> None:
        """Count a ticket's tokens as they are now. Call it the other way round before the ticket leaves."""
        self._count(ticket.tenant, 0, ticket.uncached_tokens - before.uncached_tokens)

    def waiting_of(self, tenant: str) -> int:
        """Return how many requests of a tenant are here."""
        own = self.of_tenants.get(tenant)
        return own.requests if own is not None else 0

    def note_waiting(self, ticket: Ticket) -> None:
        """Note that the ticket does not have its turn at once."""
        self._not_at_once.setdefault(ticket.service_class, set()).add(ticket.number)
        self.classes.add(ticket.service_class)
        self._account.record_waiting(ticket.tenant, self._clock())
        self.standing_since.setdefault(ticket.service_class, self._clock())

    @property
    def some_wait(self) -> bool:
        """Whether a request here did not have its turn at once."""
        return bool(self._not_at_once)

    def _waits_no_more(self, ticket: Ticket) -> None:
        waiting = self._not_at_once[ticket.service_class]
        waiting.discard(ticket.number)
        self._account.record_waiting(ticket.tenant, self._clock())
        if not waiting:
            del self._not_at_once[ticket.service_class], self.standing_since[ticket.service_class]

    def _count(self, tenant: str, requests: int, tokens: int) -> None:
        self.totals = self.totals.plus(requests, tokens)
        own = self.of_tenants.pop(tenant, NONE_WAITING).plus(requests, tokens)
        if own.requests:
            self.of_tenants[tenant] = own
