"""MemoryBudget: the memory that all requests of one gateway process share.

    request arrives -- reserve bytes as they come --- resize to what it becomes -- reserve media -- release
                          |                             |                              |
                          +----------- beyond the budget: 503 with Retry-After --------+

Without it, a few bodies of many small values take more memory than the process may use, and all requests end.

A tenant with several requests may hold at most FREE_TIMES what is free. So a flood of long prompts that wait keeps
no other tenant out: one flood leaves an eighth of the memory free, two floods a fifteenth. (Dynamic thresholds, as
in shared packet buffers: Choudhury and Hahne, 1998.)
"""

from gateway.domain.errors import BadRequest, Overloaded

RETRY_SECONDS = 1.0
"""`retry-after` of a request that is refused."""

FREE_TIMES = 7
"""A tenant with several requests may hold at most so many times the memory that is free."""


class MemoryBudget:
    """The memory that requests have reserved, and how much they may reserve together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        """Bytes that all leases hold together."""
        self.of_tenants: dict[str, int] = {}
        """Bytes by tenant, of the leases whose tenant is known."""


class MemoryLease:
    """The share of one request in a memory budget, which `release` gives back."""

    __slots__ = ("_budget", "_tenant", "bytes_held")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._tenant: str | None = None
        self.bytes_held = 0
        """Bytes that this lease holds."""

    def belong_to(self, tenant: str) -> None:
        """Count what the lease holds for this tenant; it has had none."""
        self._tenant = tenant
        if self.bytes_held:
            of_tenants = self._budget.of_tenants
            of_tenants[tenant] = of_tenants.get(tenant, 0) + self.bytes_held

    def reserve(self, more: int) -> None:
        """Take so many bytes more. Raises Overloaded, and BadRequest for more than there are."""
        self.resize(self.bytes_held + more)

    def resize(self, held: int) -> None:
        """Replace what the lease holds by so many bytes.

        Raises BadRequest if all requests together may not hold so many, and Overloaded if too few are free now.
        """
        budget, tenant = self._budget, self._tenant
        more = held - self.bytes_held
        of_tenant = 0 if tenant is None else budget.of_tenants.get(tenant, 0)
        if more > 0:
            free = budget.bytes_max - budget.bytes_held - more
            if held > budget.bytes_max:
                raise BadRequest("The request takes more memory than the gateway has for all requests.")
            if free < 0 or (of_tenant > self.bytes_held and of_tenant + more > FREE_TIMES * free):
                raise Overloaded(RETRY_SECONDS)
        budget.bytes_held += more
        self.bytes_held = held
        if tenant is not None:
            if of_tenant + more:
                budget.of_tenants[tenant] = of_tenant + more
            else:
                budget.of_tenants.pop(tenant, None)

    def release(self) -> None:
        """Give everything back; the lease may be released again."""
        self.resize(0)
