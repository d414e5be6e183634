"""The report of a tenant's limits: how much of each is left now, for its operator and the tenant itself."""

import msgspec

from gateway.quotas.leases import Leases
from gateway.quotas.limit import Mode, Scope
from gateway.quotas.limit_text import limit_in_words


class LimitReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of one limit. `amount` and `remaining` of `spend` are in millionths of the currency.

    `reset_seconds`: until the limit is fully available again.
    """

    scope: str
    limit: str
    unit: str
    mode: Mode
    amount: int
    remaining: int
    reset_seconds: float


async def limit_reports(
    leases: Leases, organisation: str, tenant: str, scopes: tuple[Scope, ...]
) -> list[LimitReport]:
    """Return what is left of each limit of these scopes; nothing is charged. Raises QuotaStoreUnavailable."""
    return [
        LimitReport(
            scope=status.scope,
            limit=limit_in_words(status.limit),
            unit=status.unit,
            mode=status.limit.mode,
            amount=status.amount,
            remaining=status.remaining,
            reset_seconds=round(status.reset_seconds, 3),
        )
        for status in await leases.limit_statuses(organisation, tenant, scopes)
    ]
