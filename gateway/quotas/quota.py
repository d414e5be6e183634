"""QuotaStore: the promise of whoever counts what tenants use.

    reserve(reservation) ---> Lease ---settle(lease, actual)---> what was used replaces the estimate
             |                  +------release(lease)----------> nothing was used: all is given back
             +--------------> Refusal: nothing was taken, from any scope

* All or nothing: every limit of every scope holds, or nothing is taken.
* Once: a reservation is known by its id. Repeating one that was granted grants it again without charging;
  settling or releasing twice is settling or releasing once; a reserve that comes after its release is refused.
* Leases end by themselves: one that is not renewed for `LEASE_SECONDS` frees its concurrency. What it reserved
  stays charged, since nobody can say what it used.
* Exact among all who use the same store. `QuotaUnavailable` is the only error.

Every implementation passes tests/conformance/test_quota_store.py.
"""

from collections.abc import Awaitable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from policies.gcra import Bucket

LEASE_SECONDS = 60.0

REQUESTS = "requests"
TOTAL_TOKENS = "total_tokens"
CONCURRENCY = "concurrency"


class QuotaUnavailable(Exception):
    """The store cannot be reached, or not in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """So much of one unit (`requests`, `total_tokens`) per period. `name` tells limits of a scope apart."""

    unit: str
    bucket: Bucket

    @property
    def name(self) -> str:
        return f"{self.unit}/{self.bucket.period_seconds:g}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One account that limits hold for: a tenant, later a key, a project, an organisation."""

    name: str
    limits: tuple[Limit, ...] = ()
    concurrency: int | None = None


class Cost(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request takes: expected when reserving, actual when settling. Tokens of prompt and output."""

    prompt_tokens: int
    cached_tokens: int = 0
    output_tokens: int = 0
    requests: int = 1

    def of(self, unit: str) -> int:
        """Units of one kind of limit."""
        return self.requests if unit == REQUESTS else self.prompt_tokens + self.output_tokens


class Reservation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`id`: request and attempt. All scopes belong to one `organisation`, whose counters live together."""

    id: str
    organisation: str
    scopes: tuple[Scope, ...]
    cost: Cost


class Standing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One limit after a decision: what is left of it, and in how many seconds it is whole again."""

    unit: str
    amount: int
    remaining: int
    reset_seconds: float


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is held for one request until it is settled or released."""

    reservation: Reservation
    standings: tuple[Standing, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Which limit said no. `retry_after_seconds` is None where the cost exceeds the limit itself."""

    scope: str
    unit: str
    amount: int
    retry_after_seconds: float | None
    standings: tuple[Standing, ...] = ()


class QuotaStore(Protocol):
    async def reserve(self, reservation: Reservation) -> Lease | Refusal:
        """Takes the cost from every limit, or nothing at all."""
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


def tightest(standings: Sequence[Standing]) -> Mapping[str, Standing]:
    """By unit, the standing of which the smallest share is left: what a client should be told."""
    found: dict[str, Standing] = {}
    for standing in standings:
        known = found.get(standing.unit)
        if known is None or standing.remaining * known.amount < known.remaining * standing.amount:
            found[standing.unit] = standing
    return found
