"""QuotaStore: the contract of a store that counts what tenants use of their limits.

    reserve(reservation) ---> Lease ---settle(lease, actual)---> the actual cost replaces the estimate
             |                  +------release(lease)----------> nothing was used: all is given back
             +--------------> Refusal: nothing was taken, from any scope

* All or nothing: every limit of every scope holds, or nothing is taken.
* Once: a reservation is known by its id. Repeating one that was granted grants it again without charging;
  settling or releasing twice is settling or releasing once; a reserve that comes after its release is refused.
* In its window: what settling gives back, or adds, counts where the reservation did (see
  policies/admission/limit_windows.py).
* Leases end by themselves: one that is not renewed for `LEASE_SECONDS` frees its concurrency. The reserved cost
  stays charged, since the actual cost is unknown.
* A request that a client repeats under a key of its own (`IdempotencyKey`) is refused while another attempt runs,
  with another content, and once all attempts are made. Each attempt is charged by itself.
* Limits that are not enforced count, and refuse no request: see Mode.
* Exact among all gateways that use the same store. `QuotaStoreUnavailable` is the only error besides
  `RepeatedReservationRefused`.

Every implementation passes tests/conformance/test_quota_store.py.
"""

from collections.abc import Awaitable, Generator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, Protocol

import msgspec

from gateway.quotas.limit import (
    CACHED_TOKENS,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    REQUESTS,
    SPEND,
    TOTAL_TOKENS,
    Limit,
    Scope,
)

LEASE_SECONDS = 60.0
IDEMPOTENCY_SECONDS = 600.0
"""How long a client's key for a repeated request is known after its last attempt began or ended."""


RepeatRefusalReason = Literal["running", "different", "used up"]
"""Another attempt runs; the key was used for another request; all attempts under it are made."""


class QuotaStoreUnavailable(Exception):
    """The store cannot be reached, or not in time.

    `answered`: the store is reachable: it has answered, but too late for the decision to count.
    """

    def __init__(self, reason: str, *, answered: bool = False) -> None:
        super().__init__(reason)
        self.answered = answered


class RepeatedReservationRefused(Exception):
    """A request may not be repeated under this key of the client's, for this reason."""

    def __init__(self, reason: RepeatRefusalReason) -> None:
        super().__init__(reason)
        self.reason = reason


Units = tuple[int, int, int, int, int, int]
"""Amounts in the order of UNITS."""


class Cost(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request takes of limits: the estimate when reserving, what was used when settling."""

    prompt_tokens: int
    cached_tokens: int | None = 0
    """Prompt tokens that were cached. None when reserving: any of them may turn out to be, so all of them are
    reserved both as cached and as uncached ones."""
    output_tokens: int = 0
    requests: int = 1
    spend: int = 0
    """Micro-units of money."""

    @property
    def units(self) -> Units:
        """The cost by unit."""
        prompt, cached = self.prompt_tokens, self.cached_tokens
        return (
            self.requests,
            prompt if cached is None else prompt - cached,
            prompt if cached is None else cached,
            self.output_tokens,
            prompt + self.output_tokens,
            self.spend,
        )


class IdempotencyKey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A client's own key for a request that it may repeat."""

    name: str
    """A hash of the key and its tenant."""
    fingerprint: str
    """A hash of the request; a request with another one is refused under the same name."""
    repeats_max: int = 3
    """How often the request may be made under this name."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The limits and the cost that a request is to reserve in a quota store."""

    id: str
    """Names one try to reserve: the id of the request, and the number of the try."""
    organisation: str
    """All scopes belong to it; their counters are kept in one place."""
    scopes: tuple[Scope, ...]
    cost: Cost
    tenant: str = ""
    """Named in alerts of used limits, as `model` is; limits do not depend on it."""
    model: str = ""
    idempotency_key: IdempotencyKey | None = None
    record: str = ""
    """The name under which a store keeps the leases that one call reserves; empty: it keeps this one by itself."""
    number: int = 0
    """The lease's number among them, from 1; 0 for one by itself."""
    closed: bool = False
    """The request is refused while the shared store is away, rather than decided by this gateway alone."""

    def limits(self) -> list[tuple[Scope, Limit]]:
        """Return all limits in their order, each with its scope."""
        return [(scope, limit) for scope in self.scopes for limit in scope.limits]


class LimitStatus(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is left of one limit after a decision."""

    scope: str
    limit: Limit
    remaining: int
    reset_seconds: float
    """Seconds until the limit is fully available again."""

    @property
    def unit(self) -> str:
        """The limit's unit."""
        return self.limit.unit

    @property
    def amount(self) -> int:
        """The whole limit."""
        return self.limit.amount


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is held for one request until it is settled or released."""

    reservation: Reservation
    limit_statuses: tuple[LimitStatus, ...] = ()
    shadow_refusals: tuple[LimitStatus, ...] = ()
    """The shadow limits that would have refused the request."""
    ended_at: float | None = None
    """When it ended, on the monotonic clock, for a store that gets the end late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The limit that refused a reservation."""

    scope: str
    limit: Limit
    retry_after_seconds: float | None
    """None where the cost exceeds the limit itself."""
    limit_statuses: tuple[LimitStatus, ...] = ()

    @property
    def unit(self) -> str:
        """The limit's unit."""
        return self.limit.unit

    @property
    def amount(self) -> int:
        """The whole limit."""
        return self.limit.amount


class GrantedAhead(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The decision on reservations ahead of requests, all of one cost."""

    count: int = 0
    """How many were granted: the first ones."""
    limit_statuses: tuple[LimitStatus, ...] = ()
    """What is left of the limits; empty where the store was not asked."""
    refused: bool = False
    """Whether a limit refused the next one, or a shadow limit would have."""
    seconds_ahead_max: float = inf
    """How long they may be ahead of their requests, from when they were asked for; escrow.py decides."""


class QuotaStore(Protocol):
    """A store that counts what tenants use of their limits."""

    async def reserve(self, reservation: Reservation, *, urgent: bool = True) -> Lease | Refusal:
        """Take the cost from every limit, or nothing at all.

        A reservation that is not urgent may be decided a moment later. Raises QuotaStoreUnavailable,
        RepeatedReservationRefused.
        """
        ...

    def settle(self, lease: Lease, actual: Cost) -> Awaitable[None]:
        """Replace the reserved cost by the actual one, and free the concurrency.

        This begins at once. The result need be awaited only to learn when it is done, or that it failed.
        """
        ...

    def release(self, lease: Lease) -> Awaitable[None]:
        """Give back all that was reserved. This begins at once, as settling does."""
        ...

    def settle_and_reserve(
        self, ended: Sequence[tuple[Lease, Cost]], ahead: Sequence[Reservation]
    ) -> Awaitable[GrantedAhead]:
        """Settle leases that ended, and then reserve others ahead of requests, as one step.

        Of `ended` there is at least one; `ahead` may be empty. All are of one organisation, tenant, model and the
        same scopes, none under a client's own key, and those ahead have one cost. Those ahead of the same `record`
        follow one another, with numbers from 1. A reservation ahead that a shadow limit would have refused is not
        granted. This begins at once; the result must be awaited, and raises QuotaStoreUnavailable.
        """
        ...

    async def renew(self, leases: Sequence[Lease]) -> None:
        """Keep these leases for another LEASE_SECONDS. Raises QuotaStoreUnavailable."""
        ...


class CompletedAwaitable:
    """The awaitable of work that is done already."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


COMPLETED = CompletedAwaitable()

UNITS = (REQUESTS, INPUT_TOKENS, CACHED_TOKENS, OUTPUT_TOKENS, TOTAL_TOKENS, SPEND)
UNIT_INDEX = {unit: at for at, unit in enumerate(UNITS)}
NO_UNITS: Units = (0, 0, 0, 0, 0, 0)
NO_COST = Cost(prompt_tokens=0, requests=0)
