"""What is told of limits besides refusals: so much of one is used; one that is only tried out would have refused.

Whoever wants to know adds a plain callable. It is called in the event loop a moment later, and must not wait.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

import msgspec

from gateway.quotas.limit import Limit
from gateway.quotas.quota import Lease, Reservation

log = logging.getLogger(__name__)

COUNTED_MAX = 10_000
OTHERS = ("-", "-")


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """The share of a limit at which it asks for it is used: told once a window, by one gateway.

    `tenant`: whose request it was. `scope`: whose limit it is. `share`: of `amount`, 1.0 for all of it.
    """

    tenant: str
    scope: str
    unit: str
    window: str
    models: tuple[str, ...]
    amount: int
    used: int
    share: float
    limit: str

    @classmethod
    def of(cls, reservation: Reservation, scope: str, limit: Limit, used: int) -> "Alert":
        return cls(
            tenant=reservation.tenant,
            scope=scope,
            unit=limit.unit,
            window=limit.window.name,
            models=limit.models,
            amount=limit.amount,
            used=used,
            share=used / limit.amount,
            limit=limit.name,
        )


class Shadowed(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that is only tried out would have refused this request."""

    request: str
    tenant: str
    scope: str
    limit: str
    amount: int


class Events:
    """`on_alert`, `on_shadowed`: who wants to know."""

    def __init__(self) -> None:
        self.on_alert: list[Callable[[Alert], None]] = [_log_alert]
        self.on_shadowed: list[Callable[[Shadowed], None]] = [_log_shadowed]
        self.alerts: Counter[tuple[str, str]] = Counter()
        """By scope and limit; and so for `shadows`."""
        self.shadows: Counter[tuple[str, str]] = Counter()

    def alert(self, alert: Alert) -> None:
        _count(self.alerts, alert.scope, alert.limit)
        for tell in self.on_alert:
            asyncio.get_running_loop().call_soon(tell, alert)

    def shadowed(self, lease: Lease) -> None:
        """All that would have refused it."""
        for standing in lease.shadowed:
            event = Shadowed(
                request=lease.reservation.id,
                tenant=lease.reservation.tenant,
                scope=standing.scope,
                limit=standing.limit.name,
                amount=standing.amount,
            )
            _count(self.shadows, event.scope, event.limit)
            for tell in self.on_shadowed:
                asyncio.get_running_loop().call_soon(tell, event)


def _count(counter: Counter[tuple[str, str]], scope: str, limit: str) -> None:
    """Beyond COUNTED_MAX new ones are counted together: each is a series of its own in metrics."""
    known = (scope, limit) in counter or len(counter) < COUNTED_MAX
    counter[(scope, limit) if known else OTHERS] += 1


def _log_alert(alert: Alert) -> None:
    log.warning(
        "%s has used %.0f %% of its limit %s (%d of %d)",
        alert.scope,
        100 * alert.share,
        alert.limit,
        alert.used,
        alert.amount,
    )


def _log_shadowed(event: Shadowed) -> None:
    log.info("request %s: the limit %s of %s would have refused it", event.request, event.limit, event.scope)
