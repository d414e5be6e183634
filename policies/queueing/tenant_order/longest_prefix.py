"""The longest cached prefix first inside a tenant, before it is evicted; but nobody is passed over for long.

Who has waited longest goes next once that is more than PATIENCE_SECONDS: without this, a prompt that nobody shares
anything with could wait for ever.
"""

from collections.abc import Sequence
from typing import ClassVar

from policies.queueing.protocol import Ticket

PATIENCE_SECONDS = 2.0


class LongestPrefix:
    name: ClassVar[str] = "longest_prefix"

    def first(self, waiting: Sequence[Ticket], now: float) -> Ticket:
        oldest = min(waiting, key=lambda ticket: (ticket.arrived_at, ticket.number))
        if now - oldest.arrived_at > PATIENCE_SECONDS:
            return oldest
        return min(waiting, key=lambda ticket: (-ticket.cached_tokens, ticket.number))
