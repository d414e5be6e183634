"""Deficit longest-prefix match: the longest cached prefix goes, as long as its tenant can pay for it.

Every tenant has a deficit counter. The ticket with most cached tokens goes whose tenant's counter is positive; its
cost over weight is taken off. If nobody's is, every counter that is not positive gets a quantum, as often as it
takes. A large quantum keeps prefixes together, a small one keeps shares even: for two tenants that wait all the
time what they received differs by at most 2 (U + Q), and by what the workers' window holds besides.

With `per_worker` a tenant has one counter for each worker that a ticket has its prefix on, as in D2LPM: the bound
then holds for each worker's work.

Cao et al.: Locality-aware Fair Scheduling in LLM Serving (arXiv 2501.14312).
"""

from collections.abc import Sequence
from math import floor
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.queueing.protocol import TAGS_MAX, QueueCounters, QueueOptions, Ticket, Turn


class DlpmOptions(QueueOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set."""

    quantum: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)],
        Meta(description="Cost units of a refill: more is locality, less fairness."),
    ] = 16384.0
    per_worker: Annotated[bool, Meta(description="One deficit per tenant and worker (D2LPM).")] = False


class Dlpm:
    """`QueueCounters.virtual_time` counts rounds of refilling: how hard the shares press."""

    name: ClassVar[str] = "dlpm"
    options_type: ClassVar[type[QueueOptions]] = DlpmOptions

    def __init__(self, options: DlpmOptions) -> None:
        self.options = options

    def arrive(self, counters: QueueCounters, ticket: Ticket, waiting: Sequence[Ticket]) -> QueueCounters:
        return counters

    def next(self, counters: QueueCounters, waiting: Sequence[Ticket], now: float) -> Turn | None:
        if not waiting:
            return None
        accounts = {self._account(ticket) for ticket in waiting}
        rounds = min(self._rounds(counters.tags.get(account, 0.0)) for account in accounts)
        tags = dict(counters.tags)
        if rounds:
            for account in accounts | tags.keys():
                tags[account] = self._refilled(tags.get(account, 0.0), rounds)
        solvent = [ticket for ticket in waiting if tags.get(self._account(ticket), 0.0) > 0]
        ticket = min(solvent, key=lambda ticket: (-ticket.cached_tokens, ticket.number))
        account = self._account(ticket)
        tags[account] -= ticket.cost / ticket.weight
        if len(tags) > TAGS_MAX:
            # Who waits for nothing and owes nothing is as one who comes anew.
            tags = {name: left for name, left in tags.items() if left < 0 or name in accounts}
        return Turn(
            ticket=ticket,
            counters=QueueCounters(virtual_time=counters.virtual_time + rounds, tags=tags),
        )

    def settle(self, counters: QueueCounters, ticket: Ticket, cost_change: float) -> QueueCounters:
        account = self._account(ticket)
        left = counters.tags.get(account, 0.0) - cost_change / ticket.weight
        return counters.moved({account: left})

    def _account(self, ticket: Ticket) -> str:
        return f"{ticket.tenant}@{ticket.worker}" if self.options.per_worker else ticket.tenant

    def _rounds(self, left: float) -> int:
        """Refills until it is positive."""
        return 0 if left > 0 else floor(-left / self.options.quantum) + 1

    def _refilled(self, left: float, rounds: int) -> float:
        return left + min(rounds, self._rounds(left)) * self.options.quantum
