"""Events of limits besides refusals: an alert that much is used, and what a shadow limit would have refused.

Listeners are plain callables. They are called in the event loop a moment later, and must not wait.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

import msgspec

from gateway.quotas.limit import Limit
from gateway.quotas.quota_store import Lease, Reservation

log = logging.getLogger(__name__)

COUNTED_MAX = 10_000
OTHERS = ("-", "-")
"""Scope and limit under which further limits are counted."""


class LimitAlert(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of a limit has reached the share at which an alert is due: sent once per window, by one gateway."""

    tenant: str
    """The tenant of the request that reached it."""
    scope: str
    """The account that the limit holds for."""
    unit: str
    window: str
    models: tuple[str, ...]
    amount: int
    used: int
    share: float
    """Usage as a share of `amount`; 1.0: all of it."""
    limit: str

    @classmethod
    def of(cls, reservation: Reservation, scope: str, limit: Limit, used: int) -> "LimitAlert":
        """Return the alert that so much of a limit is used, after this reservation."""
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


class ShadowRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """A shadow limit would have refused this request."""

    request: str
    tenant: str
    scope: str
    limit: str
    amount: int


class LimitEvents:
    """Passes events of limits on to listeners, and counts them."""

    def __init__(self) -> None:
        self.on_alert: list[Callable[[LimitAlert], None]] = [_log_alert]
        self.on_shadowed: list[Callable[[ShadowRefusal], None]] = [_log_shadowed]
        self.alerts: Counter[tuple[str, str]] = Counter()
        """Alerts by scope and limit."""
        self.shadows: Counter[tuple[str, str]] = Counter()
        """Requests that shadow limits would have refused, by scope and limit."""

    def alert(self, alert: LimitAlert) -> None:
        """Pass an alert on."""
        _count(self.alerts, alert.scope, alert.limit)
        for listener in self.on_alert:
            asyncio.get_running_loop().call_soon(listener, alert)

    def shadowed(self, lease: Lease) -> None:
        """Report all shadow limits that would have refused this request."""
        for status in lease.shadow_refusals:
            event = ShadowRefusal(
                request=lease.reservation.id,
                tenant=lease.reservation.tenant,
                scope=status.scope,
                limit=status.limit.name,
                amount=status.amount,
            )
            _count(self.shadows, event.scope, event.limit)
            for listener in self.on_shadowed:
                asyncio.get_running_loop().call_soon(listener, event)


def _count(counter: Counter[tuple[str, str]], scope: str, limit: str) -> None:
    """Count one event; beyond COUNTED_MAX, new limits count as one, since each is a metric series of its own."""
    known = (scope, limit) in counter or len(counter) < COUNTED_MAX
    counter[(scope, limit) if known else OTHERS] += 1


def _log_alert(alert: LimitAlert) -> None:
    log.warning(
        "%s has used %.0f %% of its limit %s (%d of %d)",
        alert.scope,
        100 * alert.share,
        alert.limit,
        alert.used,
        alert.amount,
    )


def _log_shadowed(event: ShadowRefusal) -> None:
    log.info("request %s: the limit %s of %s would have refused it", event.request, event.limit, event.scope)
