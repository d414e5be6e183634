"""Chooses the limits in force at a moment from the limits in settings and database."""

from collections.abc import Iterable, Sequence
from math import inf

from gateway.quotas.limit import AT_ONE_TIME, CONCURRENCY, Limit, concurrency
from gateway.settings.tenants import LimitSettings
from policies.admission.limit_windows import Window


def limits_at(
    now: float, given: Sequence[LimitSettings], at_one_time: int | None = None
) -> tuple[Limit, ...]:
    """Return the smallest limit of each kind.

    A temporary limit that has not ended replaces permanent ones of its kind.
    """
    lasting = [_limit(limit) for limit in given if limit.until is None]
    if at_one_time is not None:
        lasting.append(concurrency(at_one_time))
    passing = [_limit(limit) for limit in given if limit.until is not None and limit.until.seconds > now]
    return override_limits(_smallest(lasting), _smallest(passing))


def override_limits(first: Iterable[Limit], second: Iterable[Limit]) -> tuple[Limit, ...]:
    """Return all limits of `second`, and the limits of `first` of kinds that `second` does not have."""
    taken = {limit.kind: limit for limit in second}
    found = {limit.kind: limit for limit in first}
    return tuple({**found, **taken}.values())


def next_end(now: float, *given: Sequence[LimitSettings]) -> float:
    """Return the Unix time at which the first of these limits ends; infinity if none does."""
    ends = (limit.until.seconds for limits in given for limit in limits if limit.until is not None)
    return min((end for end in ends if end > now), default=inf)


def _smallest(limits: Iterable[Limit]) -> list[Limit]:
    found: dict[tuple[object, ...], Limit] = {}
    for limit in limits:
        known = found.get(limit.kind)
        if known is None or limit.amount < known.amount:
            found[limit.kind] = limit
    return list(found.values())


def _limit(given: LimitSettings) -> Limit:
    alert_at = 1.0 if given.alert_at is None and given.mode == "soft" else given.alert_at
    return Limit(
        unit=given.unit,
        amount=given.amount,
        window=AT_ONE_TIME if given.unit == CONCURRENCY else Window.of(given.per, given.reset),
        models=given.models,
        mode=given.mode,
        alert_at=alert_at,
    )
