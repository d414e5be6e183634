"""Recent traffic: the service classes and tenants of the latest requests, for which the dispatch window is set.

A tenant crowds if it had requests waiting when its last one came, or when the last one that waited had its turn:
what waits is in sight, also when nothing more comes of it. So does a tenant that has more than a quarter of the
work of the last seconds, if its last prompt is longer than the widest window: a few such prompts hold all engines
before any request waits. Beside a flood of more than the workers compute, a quarter of what these do is enough.
Tenants contend if those that crowd have most of the work of the last seconds
(recent_work.py), while another one does not crowd.
"""

from collections import defaultdict
from collections.abc import Iterable
from math import exp, inf

from policies.admission.recent_work import CROWDING_MAX, CROWDING_SHARE, RecentWork
from policies.admission.tenant_demand import DEMAND_SECONDS, WEIGHT_MIN
from policies.admission.waiting_bounds import NONE_WAITING, WaitingTotals

SIGHT_SECONDS = 10.0
"""A class or a tenant is in sight for so long after a request of it came."""

STANDING_SECONDS = 2.0
"""A tenant that has had most of all waiting requests for so long is a flood, and no burst."""


class TenantPair:
    """Of the tenants that do not crowd, the two whose requests came last."""

    __slots__ = ("last", "last_at", "other", "other_at")

    def __init__(self) -> None:
        self.last: str | None = None
        self.other: str | None = None
        self.last_at = self.other_at = 0.0

    def note(self, tenant: str, now: float) -> None:
        """Note that a request of this tenant came, and that it does not crowd."""
        if tenant != self.last:
            self.other, self.other_at = self.last, self.last_at
            self.last = tenant
        self.last_at = now

    def forget(self, tenant: str) -> None:
        """Leave out a tenant that crowds."""
        if tenant == self.last:
            self.last, self.last_at, self.other = self.other, self.other_at, None
        elif tenant == self.other:
            self.other = None

    def has_besides(self, tenant: str, now: float) -> bool:
        """Return whether another tenant than this one is in sight."""
        if self.last is not None and self.last != tenant and now - self.last_at <= SIGHT_SECONDS:
            return True
        return self.other is not None and self.other != tenant and now - self.other_at <= SIGHT_SECONDS

    def in_sight(self, now: float) -> set[str]:
        """Return the tenants that are in sight."""
        last = ((self.last, self.last_at), (self.other, self.other_at))
        return {tenant for tenant, at in last if tenant is not None and now - at <= SIGHT_SECONDS}


class ClassInSight:
    """What came lately of one service class. `now`: when its first request came."""

    __slots__ = ("_tokens", "_weight", "last_at")

    def __init__(self, now: float) -> None:
        self.last_at = now
        self._tokens = self._weight = 0.0

    def add(self, tokens: int, now: float) -> None:
        """Count a request with so many uncached prompt tokens; what came before fades in DEMAND_SECONDS."""
        left = exp((self.last_at - now) / DEMAND_SECONDS)
        self._tokens = left * self._tokens + tokens
        self._weight = left * self._weight + 1 - left
        self.last_at = now

    def tokens_per_second(self) -> float:
        """Return the mean rate at which its prompt tokens come; infinity of a class that has just come."""
        return self._tokens / DEMAND_SECONDS / self._weight if self._weight > WEIGHT_MIN else inf


class SeenRequests:
    """What was seen of the requests for one model."""

    __slots__ = ("classes", "flood", "flood_at", "flood_since", "others", "work")

    def __init__(self, now: float) -> None:
        self.classes: dict[float, ClassInSight] = {}
        """By TTFT target in seconds."""
        self.others = TenantPair()
        """Tenants that do not crowd."""
        self.work = RecentWork(now)
        self.flood = NONE_WAITING
        """What waited of a tenant that had most of all waiting requests, when its last request came."""
        self.flood_since = self.flood_at = -SIGHT_SECONDS
        """When the first and the last request of such a tenant came, without a break."""

    def note_flood(self, flood: WaitingTotals, now: float) -> None:
        """Note what waits of a tenant that has most of all waiting requests."""
        if now - self.flood_at > STANDING_SECONDS:
            self.flood_since = now
        self.flood, self.flood_at = flood, now

    def note_class(self, target_seconds: float, tokens: int, now: float) -> bool:
        """Note so many tokens of a class with this TTFT target; return whether the class comes into sight."""
        of_class = self.classes.get(target_seconds)
        comes = of_class is None or now - of_class.last_at > SIGHT_SECONDS
        if of_class is None or comes:
            of_class = self.classes[target_seconds] = ClassInSight(now)
        of_class.add(tokens, now)
        return comes

    def has_much_work(self, tenant: str, tokens: int, now: float, tokens_per_second: float) -> bool:
        """Return whether a tenant has its part of the work of a crowd, a request of so many tokens included.

        Tenants that have most of the recent work together hold others up as one does: CROWDING_MAX are counted.
        `tokens_per_second`: what the workers compute.
        """
        share = self.work.share_with(tenant, tokens, now, tokens_per_second=tokens_per_second)
        return share > CROWDING_SHARE / CROWDING_MAX


class TrafficInSight:
    """The service classes and tenants in sight, by model. Times are seconds on any clock."""

    def __init__(self) -> None:
        self._seen: dict[str, SeenRequests] = {}

    def see(
        self,
        model: str,
        target_seconds: float,
        tenant: str,
        now: float,
        *,
        tokens: int,
        crowds: bool,
        flood: WaitingTotals = NONE_WAITING,
        window_tokens: int | None = None,
        tokens_per_second: float = inf,
    ) -> bool:
        """Note that a request for this model came; return whether its class comes into sight.

        `target_seconds`: the TTFT target of its class. `tokens`: its uncached prompt tokens. `crowds`:
        its tenant has requests waiting. `flood`: what waits of its tenant, if that is most of all that waits.
        `window_tokens`: the widest window; None: no prompt is longer. `tokens_per_second`: what workers compute.
        """
        seen = self._seen.get(model)
        if seen is None:
            seen = self._seen[model] = SeenRequests(now)
        if flood.requests:
            seen.note_flood(flood, now)
        if window_tokens is not None and tokens > window_tokens:
            crowds = crowds or seen.has_much_work(tenant, tokens, now, tokens_per_second)
        seen.work.add(tenant, tokens, now, crowds=crowds)
        if crowds:
            seen.others.forget(tenant)
        else:
            seen.others.note(tenant, now)
        return seen.note_class(target_seconds, tokens, now)

    def see_turn(
        self,
        model: str,
        target_seconds: float,
        tenant: str,
        now: float,
        *,
        tokens: int,
        crowds: bool,
        flood: WaitingTotals = NONE_WAITING,
    ) -> bool:
        """Note that a request had its turn after a wait; return whether its class comes into sight again.

        `crowds`: more requests of its tenant wait. The others are as in `see`.
        """
        seen = self._seen.get(model)
        if seen is None:
            seen = self._seen[model] = SeenRequests(now)
        if flood.requests:
            seen.note_flood(flood, now)
        if crowds:
            seen.work.add_turn(tenant, tokens, now)
            seen.others.forget(tenant)
        return seen.note_class(target_seconds, 0, now)

    def demand(self, models: Iterable[str], now: float) -> dict[float, float]:
        """Return the classes in sight of these models; drop what is out of sight.

        They are known by their TTFT target in seconds, each with the uncached prompt tokens that come in a second.
        """
        found: dict[float, float] = defaultdict(float)
        for model in models:
            seen = self._seen.get(model)
            if seen is None:
                continue
            seen.classes = {
                target: each for target, each in seen.classes.items() if now - each.last_at <= SIGHT_SECONDS
            }
            if not seen.classes:
                del self._seen[model]
            for target, each in seen.classes.items():
                found[target] += each.tokens_per_second()
        return found

    def demand_of_others(self, models: Iterable[str], much: float, now: float) -> tuple[float, float]:
        """Return what comes in a second of tenants that do not crowd: see RecentWork.demand_of_others."""
        of = [self._seen[model].work.demand_of_others(much, now) for model in models if model in self._seen]
        return sum(tokens for tokens, _ in of), sum(squares for _, squares in of)

    def contended(self, models: Iterable[str], now: float) -> bool:
        """Return whether tenants that crowd, with requests for these models, hold up one that does not."""
        seen = [found for model in models if (found := self._seen.get(model)) is not None]
        of_crowding = in_all = 0
        crowding: set[str] = set()
        others: set[str] = set()
        for of in seen:
            tokens, tokens_in_all = of.work.tokens(now)
            of_crowding += tokens
            in_all += tokens_in_all
            crowding |= of.work.crowding
            others |= of.others.in_sight(now)
        return bool(others - crowding) and of_crowding > CROWDING_SHARE * in_all

    def has_several_tenants(self, models: Iterable[str], now: float) -> bool:
        """Return whether a tenant that does not crowd is in sight, and another one."""
        seen = [found for model in models if (found := self._seen.get(model)) is not None]
        others = set[str]().union(*(of.others.in_sight(now) for of in seen))
        crowding = set[str]().union(*(of.work.crowding for of in seen))
        return bool(others - crowding) and len(others | crowding) > 1

    def work_share(self, model: str, tenant: str, now: float, *, tokens_min: float = 0.0) -> float:
        """Return a tenant's share of the recent work for this model.

        It is 0 if no other tenant is in sight, or if the tenant's work has no more than `tokens_min` tokens.
        """
        own, in_all = self.work_beside_others(model, tenant, now)
        return own / in_all if own > tokens_min else 0.0

    def work_beside_others(self, model: str, tenant: str, now: float) -> tuple[float, float]:
        """Return the tokens of a tenant's recent work for this model, and those of all tenants' work.

        Both are 0 if no other tenant is in sight.
        """
        seen = self._seen.get(model)
        if seen is None or not seen.others.has_besides(tenant, now):
            return 0.0, 0.0
        return seen.work.of_tenant(tenant, now)

    def standing_flood(self, models: Iterable[str], now: float) -> WaitingTotals:
        """Return what waits for these models in floods that have lasted for STANDING_SECONDS."""
        total = NONE_WAITING
        for model in models:
            seen = self._seen.get(model)
            if seen is None or now - seen.flood_at > STANDING_SECONDS:
                continue
            if seen.flood_at - seen.flood_since > STANDING_SECONDS:
                total = total.plus(seen.flood.requests, seen.flood.tokens)
        return total
