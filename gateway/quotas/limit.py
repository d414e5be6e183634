"""Limit: so much of one unit per window, for some models or for all; and Scope, the account that it holds for."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

from policies.admission.limit_windows import Window

REQUESTS = "requests"
INPUT_TOKENS = "input_tokens"
"""Of prompts, those that no cache had."""
CACHED_TOKENS = "cached_tokens"
"""Of prompts, those that a cache had."""
OUTPUT_TOKENS = "output_tokens"
TOTAL_TOKENS = "total_tokens"
SPEND = "spend"
"""Micro-units of money."""
CONCURRENCY = "concurrency"

TOKEN_UNITS = (TOTAL_TOKENS, INPUT_TOKENS, CACHED_TOKENS, OUTPUT_TOKENS)

Mode = Literal["enforce", "soft", "shadow"]
"""`soft`: counts everything, refuses nothing. `shadow`: as if it were enforced, but nobody is refused: what it
would have refused is told, and does not count."""

AT_ONE_TIME = Window(seconds=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """`models`: patterns; together they share the limit, and without any it is for all. `alert_at`: the share of it
    of which the use is told, once a window."""

    unit: str
    amount: int
    window: Window = AT_ONE_TIME
    models: tuple[str, ...] = ()
    mode: Mode = "enforce"
    alert_at: float | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """Limits of one kind take the place of one another."""
        return (self.unit, self.window, self.models, self.mode)

    @property
    def name(self) -> str:
        """Tells limits of a scope apart. It stays where only the amount changes, and so does what is used."""
        return _name(self.unit, self.window, self.models, self.mode)

    @property
    def enforced(self) -> bool:
        return self.mode == "enforce"

    @property
    def is_budget(self) -> bool:
        """Gone until its window ends, however long one waits; a smooth limit fills up again all the time."""
        return self.window.reset != "smooth"

    def holds_for(self, model: str) -> bool:
        return not self.models or _matches(self.models, model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One account that limits hold for: an organisation, a tenant, a key. `name` is its kind and name."""

    name: str
    limits: tuple[Limit, ...] = ()


def concurrency(amount: int, models: tuple[str, ...] = ()) -> Limit:
    """So many requests at one time."""
    return Limit(unit=CONCURRENCY, amount=amount, models=models)


def scopes_for(scopes: Sequence[Scope], model: str) -> tuple[Scope, ...]:
    """The same, with the limits that hold for this model."""
    if not any(limit.models for scope in scopes for limit in scope.limits):
        return tuple(scopes)
    return tuple(
        Scope(name=scope.name, limits=tuple(limit for limit in scope.limits if limit.holds_for(model)))
        for scope in scopes
    )


@lru_cache(maxsize=4096)
def _name(unit: str, window: Window, models: tuple[str, ...], mode: Mode) -> str:
    # What models are called is anybody's: they come last, and what stands between them is escaped in them.
    shared = ",".join(model.replace("%", "%25").replace(",", "%2C") for model in models)
    parts = [
        unit if mode == "enforce" else f"{unit} ({mode})",
        *([window.name] if unit != CONCURRENCY else []),
        *([shared] if models else []),
    ]
    return "/".join(parts)


@lru_cache(maxsize=4096)
def _matches(patterns: tuple[str, ...], model: str) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in patterns)
