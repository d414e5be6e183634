"""Limits: an amount of one unit per window, for some models or for all; and scopes, the accounts with limits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

from policies.admission.limit_windows import Window

REQUESTS = "requests"
INPUT_TOKENS = "input_tokens"
"""Prompt tokens that were not cached."""
CACHED_TOKENS = "cached_tokens"
"""Prompt tokens that were cached."""
OUTPUT_TOKENS = "output_tokens"
TOTAL_TOKENS = "total_tokens"
SPEND = "spend"
"""Micro-units of money."""
CONCURRENCY = "concurrency"

TOKEN_UNITS = (TOTAL_TOKENS, INPUT_TOKENS, CACHED_TOKENS, OUTPUT_TOKENS)

Mode = Literal["enforce", "soft", "shadow"]
"""What a limit does. `soft`: it counts everything and refuses nothing. `shadow`: it counts as if it were enforced
and refuses nothing; a request that it would have refused is reported and not counted."""

AT_ONE_TIME = Window(seconds=0.0)
"""The window of limits of concurrency, which have none."""

CACHED_MAX = 4096
"""The most tuples of scopes in the cache of limits by model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """So much of one unit per window."""

    unit: str
    amount: int
    window: Window = AT_ONE_TIME
    models: tuple[str, ...] = ()
    """Patterns of the models that share the limit; none: it holds for all models."""
    mode: Mode = "enforce"
    alert_at: float | None = None
    """The share of the limit at which an alert is sent, once per window."""
    name: str = field(init=False, repr=False, compare=False)
    """The limit's name within its scope. A changed amount does not change it, so that usage is kept."""
    enforced: bool = field(init=False, repr=False, compare=False)
    """Whether it refuses requests."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _name(self.unit, self.window, self.models, self.mode))
        object.__setattr__(self, "enforced", self.mode == "enforce")

    @property
    def kind(self) -> tuple[object, ...]:
        """Limits of one kind in the same scope replace one another: only one of them holds at a time."""
        return (self.unit, self.window, self.models, self.mode)

    @property
    def is_budget(self) -> bool:
        """Whether it is a budget, in any unit: what is used comes back only at the window's end, not bit by bit."""
        return self.window.reset != "smooth"

    def holds_for(self, model: str) -> bool:
        """Return whether the limit counts requests for this model."""
        return not self.models or _matches(self.models, model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """An account with limits: of an organisation, a tenant, an API key, or a provider."""

    name: str
    """The account's kind, a colon, and its name."""
    limits: tuple[Limit, ...] = ()


def concurrency(amount: int, models: tuple[str, ...] = ()) -> Limit:
    """Return a limit of so many requests at the same time."""
    return Limit(unit=CONCURRENCY, amount=amount, models=models)


_limits_by_model: dict[tuple[int, str], tuple[Sequence[Scope], tuple[Scope, ...]]] = {}


def scopes_for(scopes: Sequence[Scope], model: str) -> tuple[Scope, ...]:
    """Return the scopes with the limits that hold for this model.

    The same tuple of scopes, which a tenant keeps until its limits change, gives the same tuple each time: other
    caches compare it by identity.
    """
    key = (id(scopes), model)
    known = _limits_by_model.get(key)
    # The entry keeps the scopes alive, so no others have their id.
    if known is not None and known[0] is scopes:
        return known[1]
    found = tuple(
        Scope(name=scope.name, limits=tuple(limit for limit in scope.limits if limit.holds_for(model)))
        for scope in scopes
    )
    if len(_limits_by_model) >= CACHED_MAX:
        _limits_by_model.clear()
    _limits_by_model[key] = scopes, found
    return found


def _name(unit: str, window: Window, models: tuple[str, ...], mode: Mode) -> str:
    # Names of models may contain anything: they come last, and their separators are escaped.
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
