"""QuotaStore: the promise of whoever counts what tenants use.

    reserve(reservation) ---> Lease ---settle(lease, actual)---> what was used replaces the estimate
             |                  +------release(lease)----------> nothing was used: all is given back
             +--------------> Refusal: nothing was taken, from any scope

* All or nothing: every limit of every scope holds, or nothing is taken.
* Once: a reservation is known by its id. Repeating one that was granted grants it again without charging;
  settling or releasing twice is settling or releasing once; a reserve that comes after its release is refused.
* In its window: what settling gives back, or adds, counts where the reservation did (policies/admission/limit_windows.py).
* Leases end by themselves: one that is not renewed for `LEASE_SECONDS` frees its concurrency. What it reserved
  stays charged, since nobody can say what it used.
* A request that a client repeats under a key of its own (`Once`) is charged once: as much as its dearest attempt.
  A lease says what was settled before it, so that accounts can keep to the same rule.
* Limits that are not enforced count, and refuse nobody: see Mode.
* Exact among all who use the same store. `QuotaUnavailable` is the only error besides `RepeatRefused`.

Every implementation passes tests/conformance/test_quota_store.py.
"""

from collections.abc import Awaitable, Generator, Sequence
from dataclasses import dataclass
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
ONCE_SECONDS = 600.0
"""How long a client's key for a repeated request is known after its last attempt began or ended."""


WhyNot = Literal["running", "different", "used up"]


class QuotaUnavailable(Exception):
    """The store cannot be reached, or not in time."""


class RepeatRefused(Exception):
    """A request may not be repeated under this key of the client's, for this reason."""

    def __init__(self, why: WhyNot) -> None:
        super().__init__(why)
        self.why = why


Units = tuple[int, int, int, int, int, int]
"""In the order of UNITS."""


class Cost(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request takes: expected when reserving, actual when settling. Tokens of prompt and output.

    `cached_tokens`: of those of the prompt; None when reserving: any of them may turn out to be, so all of them
    are reserved as cached and as uncached ones. `spend`: micro-units of money.
    """

    prompt_tokens: int
    cached_tokens: int | None = 0
    output_tokens: int = 0
    requests: int = 1
    spend: int = 0

    @property
    def units(self) -> Units:
        prompt, cached = self.prompt_tokens, self.cached_tokens
        unknown = cached is None
        return (
            self.requests,
            prompt if cached is None else prompt - cached,
            prompt if unknown else cached or 0,
            self.output_tokens,
            prompt + self.output_tokens,
            self.spend,
        )


class Once(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A client's own key for a request that it may repeat.

    `name`: of key and tenant, and safe to be kept. `fingerprint`: of the request; another one under the same name
    is refused. `attempts_max`: so often it may be made under this name.
    """

    name: str
    fingerprint: str
    attempts_max: int = 3


class Reservation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`id`: request and attempt. All scopes belong to one `organisation`, whose counters live together.

    `tenant`, `model`: whom events name. `closed`: it is refused rather than decided without the others.
    """

    id: str
    organisation: str
    scopes: tuple[Scope, ...]
    cost: Cost
    tenant: str = ""
    model: str = ""
    once: Once | None = None
    closed: bool = False

    def limits(self) -> list[tuple[Scope, Limit]]:
        """All of them, in their order."""
        return [(scope, limit) for scope in self.scopes for limit in scope.limits]


class Standing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One limit after a decision: what is left of it, and in how many seconds it is whole again."""

    scope: str
    limit: Limit
    remaining: int
    reset_seconds: float

    @property
    def unit(self) -> str:
        return self.limit.unit

    @property
    def amount(self) -> int:
        return self.limit.amount


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is held for one request until it is settled or released.

    `shadowed`: standings of limits that would have refused it, were they enforced. `settled`: what earlier attempts
    under the client's own key were settled to, the dearest of each of UNITS; the accounts have it already.
    `ended_at`: when it ended, on the monotonic clock, for a store that is told of it late.
    """

    reservation: Reservation
    standings: tuple[Standing, ...] = ()
    shadowed: tuple[Standing, ...] = ()
    settled: Units | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Which limit said no. `retry_after_seconds` is None where the cost exceeds the limit itself."""

    scope: str
    limit: Limit
    retry_after_seconds: float | None
    standings: tuple[Standing, ...] = ()

    @property
    def unit(self) -> str:
        return self.limit.unit

    @property
    def amount(self) -> int:
        return self.limit.amount


class QuotaStore(Protocol):
    async def reserve(self, reservation: Reservation) -> Lease | Refusal:
        """Takes the cost from every limit, or nothing at all. Raises QuotaUnavailable, RepeatRefused."""
        ...

    def settle(self, lease: Lease, actual: Cost) -> Awaitable[None]:
        """Replaces the reserved cost by the actual one; concurrency is free again.

        Begins at once. Whoever wants to know when it is done, or that it failed, awaits the result.
        """
        ...

    def release(self, lease: Lease) -> Awaitable[None]:
        """Gives back all that was reserved. Begins at once, as settling does."""
        ...

    async def renew(self, leases: Sequence[Lease]) -> None:
        """Keeps these leases for another LEASE_SECONDS."""
        ...


class Done:
    """The awaitable of something that is done already."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


DONE = Done()

UNITS = (REQUESTS, INPUT_TOKENS, CACHED_TOKENS, OUTPUT_TOKENS, TOTAL_TOKENS, SPEND)
UNIT_INDEX = {unit: at for at, unit in enumerate(UNITS)}
