"""MemoryBudget: the memory that all requests of one gateway process share.

    request arrives -- reserve bytes as they come --- resize to what it becomes -- reserve media -- release
                          |                             |                              |
                          +----------- beyond the budget: 503 with Retry-After --------+

Without it, a few bodies of many small values take more memory than the process may use, and all requests end.
"""

from gateway.domain.errors import BadRequest, Overloaded

RETRY_SECONDS = 1.0
"""`retry-after` of a request that is refused."""


class MemoryBudget:
    """The memory that requests have reserved, and how much they may reserve together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        """Bytes that all leases hold together."""


class MemoryLease:
    """The share of one request in a memory budget, which `release` gives back."""

    __slots__ = ("_budget", "bytes_held")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.bytes_held = 0
        """Bytes that this lease holds."""

    def reserve(self, more: int) -> None:
        """Take so many bytes more. Raises Overloaded, and BadRequest for more than there are."""
        self.resize(self.bytes_held + more)

    def resize(self, held: int) -> None:
        """Replace what the lease holds by so many bytes. Raises Overloaded, BadRequest if these are too many."""
        budget = self._budget
        more = held - self.bytes_held
        if more > 0 and budget.bytes_held + more > budget.bytes_max:
            if held > budget.bytes_max:
                raise BadRequest("The request takes more memory than the gateway has for all requests.")
            raise Overloaded(RETRY_SECONDS)
        budget.bytes_held += more
        self.bytes_held = held

    def release(self) -> None:
        """Give everything back; the lease may be released again."""
        self._budget.bytes_held -= self.bytes_held
        self.bytes_held = 0
