"""How fast workers are, as learnt from their answers: each by itself, and all that serve the same models together.

What is known of few answers is held against the others'; see policies/latency_model.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from policies.latency_model import PrefillFit, learnt_step_ms, shrunk
from workers.worker import Speed

MODELS_MAX = 1000

Known = TypeVar("Known", Speed, PrefillFit)


@dataclass(slots=True)
class LearntSpeed:
    """`fit`: of prefills. `step_ms`, learnt from so many `steps`: of streams. `speed`: what is made of both.

    `rated_ms_per_token`: what its operator says of it; that is held for it, and not what the others of its models
    take, as long as little is known. It may well be another GPU than theirs. `told_ms_per_token`: what its engine
    says that it took so far, which stands in for a rating where there is none.
    """

    speed: Speed = field(default_factory=Speed)
    fit: PrefillFit = field(init=False)
    step_ms: float = field(init=False)
    steps: int = 0
    rated_ms_per_token: float | None = None
    told_ms_per_token: float | None = None

    def __post_init__(self) -> None:
        self.speed = self._rated(self.speed)
        self.fit = PrefillFit.seeded(self.speed)
        self.step_ms = self.speed.step_ms

    def learn_prefill(self, tokens: int, ttft_ms: float) -> None:
        self.fit = self.fit.learnt(tokens, ttft_ms)

    def learn_step(self, tpot_ms: float) -> None:
        self.step_ms = learnt_step_ms(self.step_ms, tpot_ms)
        self.steps += 1

    def held_against(self, fleet: "LearntSpeed") -> None:
        others = self._rated(fleet.fit)
        self.speed = shrunk(
            self.fit, others, steps=self.steps, step_ms=self.step_ms, fleet_step_ms=fleet.step_ms
        )

    def begin_as(self, fleet: "LearntSpeed") -> None:
        """Nothing is known of it yet: it is held for one of the others."""
        self.fit = PrefillFit.seeded(self._rated(fleet.fit.speed(self.speed)))
        self.step_ms = fleet.step_ms
        self.held_against(fleet)

    def _rated(self, known: Known) -> Known:
        rating = self.rated_ms_per_token if self.rated_ms_per_token is not None else self.told_ms_per_token
        return replace(known, ms_per_token=rating) if rating is not None else known


class FleetSpeeds:
    """By the models that workers serve; of too many different sets the later ones stand alone."""

    def __init__(self) -> None:
        self._together: dict[frozenset[str], LearntSpeed] = {}

    def first_token(
        self,
        models: frozenset[str],
        own: LearntSpeed,
        fellows: Iterable[LearntSpeed],
        *,
        tokens: int,
        ttft_ms: float,
    ) -> None:
        """A first token came. `fellows`: all that serve the same models, itself included."""
        together = self._of(models)
        together.learn_prefill(tokens, ttft_ms)
        own.learn_prefill(tokens, ttft_ms)
        _spread(together, own, fellows)

    def step(
        self, models: frozenset[str], own: LearntSpeed, fellows: Iterable[LearntSpeed], *, tpot_ms: float
    ) -> None:
        """A stream's tokens came so far apart on average."""
        together = self._of(models)
        together.learn_step(tpot_ms)
        own.learn_step(tpot_ms)
        _spread(together, own, fellows)

    def joined(self, models: frozenset[str], own: LearntSpeed) -> None:
        """It begins to serve these models."""
        if models in self._together and not own.fit.samples:
            own.begin_as(self._together[models])

    def told(self, models: frozenset[str], own: LearntSpeed, ms_per_token: float) -> None:
        """Its engine says what a token has taken it."""
        own.told_ms_per_token = ms_per_token
        if not own.fit.samples:
            own.begin_as(self._of(models))
        elif not own.fit.settled:
            own.held_against(self._of(models))

    def _of(self, models: frozenset[str]) -> LearntSpeed:
        if models not in self._together and len(self._together) >= MODELS_MAX:
            return LearntSpeed()
        return self._together.setdefault(models, LearntSpeed())


def _spread(together: LearntSpeed, own: LearntSpeed, fellows: Iterable[LearntSpeed]) -> None:
    for fellow in fellows:
        if fellow is own or not fellow.fit.settled:
            fellow.held_against(together)
