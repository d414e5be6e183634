"""Queue policy `dlpm`, deficit longest-prefix match: the longest cached prefix goes if its tenant can pay for it.

    next    of the tickets of tenants with a positive deficit counter, the one with most cached tokens; of equal
            ones that of the tenant that has most left
    charge  counter -= cost / weight                                      when the turn is given
    refill  counter += quantum, for every counter that is not positive    while no counter is positive

A large quantum keeps prefixes together, a small one keeps shares even: for two tenants that wait all the time, what
they received differs by at most 2 (U + Q), and by what the workers' window holds besides (U: largest cost over
weight, Q: quantum; cost units).

With `per_worker` a tenant has one counter for each worker that a ticket has its prefix on, as in D2LPM: the bound
then holds for each worker's work.

Source: Cao et al.: Locality-aware Fair Scheduling in LLM Serving (arXiv 2501.14312).
"""

from collections.abc import Sequence
from math import floor
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.queueing.protocol import TAGS_MAX, QueueCounters, QueueOptions, QueueTurn, Ticket


class DlpmOptions(QueueOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the policy `dlpm`."""

    quantum: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)],
        Meta(
            description="Cost units of a refill: large keeps equal prefixes together, small keeps shares even."
        ),
    ] = 16384.0
    per_worker: Annotated[
        bool,
        Meta(
            description="Whether a tenant has one deficit counter for each worker (D2LPM) instead of one in all."
        ),
    ] = False


class Dlpm:
    """The policy `dlpm`.

    `QueueCounters.tags` are the deficit counters, in cost units over weight; `QueueCounters.virtual_time` counts
    the rounds of refilling.
    """

    name: ClassVar[str] = "dlpm"
    options_type: ClassVar[type[QueueOptions]] = DlpmOptions

    def __init__(self, options: DlpmOptions) -> None:
        self.options = options

    def arrive(self, counters: QueueCounters, ticket: Ticket, waiting: Sequence[Ticket]) -> QueueCounters:
        """Return the counters unchanged: arrival alone changes no deficit."""
        return counters

    def next(self, counters: QueueCounters, waiting: Sequence[Ticket], now: float) -> QueueTurn | None:
        """Give the turn to the longest cached prefix of a tenant with a positive deficit counter."""
        if not waiting:
            return None
        accounts = {self._account(ticket) for ticket in waiting}
        rounds = min(self._rounds(counters.tags.get(account, 0.0)) for account in accounts)
        tags = counters.tags
        if rounds:
            tags = {
                account: self._refilled(tags.get(account, 0.0), rounds) for account in accounts | tags.keys()
            }
        solvent = [ticket for ticket in waiting if tags.get(self._account(ticket), 0.0) > 0]
        ticket = min(
            solvent,
            key=lambda ticket: (-ticket.cached_tokens, -tags[self._account(ticket)], ticket.number),
        )
        account = self._account(ticket)
        left = tags[account] - ticket.cost / ticket.weight
        if not rounds:
            return QueueTurn(ticket=ticket, counters=counters.with_tags({account: left}))
        tags = {**tags, account: left}
        if len(tags) > TAGS_MAX:
            # A tenant that has nothing waiting and owes nothing is as good as a new one.
            tags = {name: left for name, left in tags.items() if left < 0 or name in accounts}
        return QueueTurn(
            ticket=ticket,
            counters=QueueCounters(virtual_time=counters.virtual_time + rounds, tags=tags),
        )

    def correct(self, counters: QueueCounters, ticket: Ticket, cost_change: float) -> QueueCounters:
        """Take the cost that was not foreseen off the tenant's deficit counter."""
        account = self._account(ticket)
        left = counters.tags.get(account, 0.0) - cost_change / ticket.weight
        return counters.with_tags({account: left})

    def _account(self, ticket: Ticket) -> str:
        return f"{ticket.tenant}@{ticket.worker}" if self.options.per_worker else ticket.tenant

    def _rounds(self, left: float) -> int:
        """Return how many refills make the counter positive."""
        return 0 if left > 0 else floor(-left / self.options.quantum) + 1

    def _refilled(self, left: float, rounds: int) -> float:
        return left + min(rounds, self._rounds(left)) * self.options.quantum
