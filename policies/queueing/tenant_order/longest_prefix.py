"""Tenant order `longest_prefix`: the longest cached prefix first, before it is evicted, with a bound on the wait.

The request that has waited longest goes next once it has waited more than PATIENCE_SECONDS: without this, a prompt
that shares nothing with others could wait for ever.
"""

from collections.abc import Sequence
from typing import ClassVar

from policies.queueing.protocol import Ticket

PATIENCE_SECONDS = 2.0
"""Time after which the oldest request goes first."""


class LongestPrefix:
    """The tenant order `longest_prefix`."""

    name: ClassVar[str] = "longest_prefix"

    def first(self, waiting: Sequence[Ticket], now: float) -> Ticket:
        """Return the ticket with most cached tokens, or the oldest if that has waited too long."""
        oldest = min(waiting, key=lambda ticket: (ticket.arrived_at, ticket.number))
        if now - oldest.arrived_at > PATIENCE_SECONDS:
            return oldest
        return min(waiting, key=lambda ticket: (-ticket.cached_tokens, ticket.number))
