"""How many wait, and whose they are: the space of a waiting room."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.domain.errors import Overloaded, TenantQueueFull
from policies.admission.waiting_room import WaitingRoomBounds, WaitingTotals, refused_by
from policies.queueing.fairness_account import Account
from policies.queueing.protocol import Ticket

NOBODY = WaitingTotals()


class Space:
    """`bounds`: for whoever comes. `everybody`: who is inside. `classes`: those that have waited here.
    `standing_since`: somebody has waited without a break."""

    def __init__(self, bounds: WaitingRoomBounds, account: Account, clock: Callable[[], float]) -> None:
        self.everybody = NOBODY
        self.classes: set[str] = set()
        self.standing_since: float | None = None
        self.bounds = bounds
        self._account = account
        self._clock = clock
        self._of_tenants: dict[str, WaitingTotals] = {}
        self._not_at_once: set[int] = set()

    @contextmanager
    def taken(self, ticket: Ticket, retry_after: Callable[[str | None], float]) -> Iterator[None]:
        """Takes space, and gives it back. `retry_after`: of a tenant, or of all.

        Raises TenantQueueFull, Overloaded.
        """
        tenant, tokens = ticket.tenant, ticket.uncached_tokens
        own = self._of_tenants.get(tenant, NOBODY)
        tenants = len(self._of_tenants) + (tenant not in self._of_tenants)
        by = refused_by(self.bounds, self.everybody, own, tenants, tokens)
        if by == "tenant":
            raise TenantQueueFull(retry_after(tenant))
        if by == "everybody":
            raise Overloaded(retry_after(None))
        self._count(tenant, 1, tokens)
        try:
            yield
        finally:
            self._count(tenant, -1, -tokens)
            if ticket.number in self._not_at_once:
                self._not_at_once.discard(ticket.number)
                self._account.waits(tenant, self._clock())
            if not self._not_at_once:
                self.standing_since = None

    def waits(self, ticket: Ticket) -> None:
        """It does not have its turn at once."""
        self._not_at_once.add(ticket.number)
        self.classes.add(ticket.service_class)
        self._account.waits(ticket.tenant, self._clock())
        if self.standing_since is None:
            self.standing_since = self._clock()

    def _count(self, tenant: str, requests: int, tokens: int) -> None:
        self.everybody = self.everybody.plus(requests, tokens)
        own = self._of_tenants.pop(tenant, NOBODY).plus(requests, tokens)
        if own.requests:
            self._of_tenants[tenant] = own
