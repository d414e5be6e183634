"""One gateway's share of the limits while each gateway decides alone: an equal part of every limit."""

from dataclasses import replace

import msgspec

from gateway.quotas.limit import Scope
from gateway.quotas.quota_store import UNIT_INDEX, LimitStatus, Refusal, Reservation

AGAIN_SECONDS = 1.0


def share_of(reservation: Reservation, parts: int) -> Reservation:
    """Return the reservation within one of so many parts of every limit."""
    if parts == 1:
        return reservation
    scopes = tuple(_share_of_scope(scope, parts) for scope in reservation.scopes)
    return msgspec.structs.replace(reservation, scopes=scopes)


def status_share(status: LimitStatus, parts: int) -> LimitStatus:
    """Return what one gateway has left of a limit, of what all have left."""
    return msgspec.structs.replace(status, remaining=status.remaining // parts)


def refusal_of_whole(refusal: Refusal, reservation: Reservation, parts: int) -> Refusal:
    """Return the refusal by a part, with a time after which a cost that fits the whole limit may fit again."""
    if refusal.retry_after_seconds is None and parts > 1:
        whole = {(scope.name, limit.name): limit for scope, limit in reservation.limits()}
        limit = whole[refusal.scope, refusal.limit.name]
        if reservation.cost.units[UNIT_INDEX[limit.unit]] <= limit.amount:
            return replace(refusal, retry_after_seconds=AGAIN_SECONDS)
    return refusal


def _share_of_scope(scope: Scope, parts: int) -> Scope:
    limits = tuple(replace(limit, amount=max(1, limit.amount // parts)) for limit in scope.limits)
    return replace(scope, limits=limits)
