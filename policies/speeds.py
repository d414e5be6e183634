"""The speed of each worker, learnt from its answers and from those of all workers that serve the same models.

A worker with few answers is assumed to be as fast as the others; see policies/latency_model.
"""

from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from policies.latency_model import PrefillFit, shrunk_speed, updated_step_ms
from workers.worker import Speed

MODELS_MAX = 1000

Known = TypeVar("Known", Speed, PrefillFit)


@dataclass(slots=True)
class SpeedSamples:
    """What was learnt from the answers of one worker, or of all workers of the same models."""

    fit: PrefillFit
    """Of prefills."""
    step_ms: float
    """Milliseconds between the tokens of a stream."""
    steps: int = 0
    """How many streams `step_ms` was learnt from."""
    version: int = 0
    """Rises with every sample."""

    def learn_prefill(self, tokens: int, ttft_ms: float) -> None:
        """Add one first token."""
        self.fit = self.fit.updated(tokens, ttft_ms)
        self.version += 1

    def learn_step(self, tpot_ms: float) -> None:
        """Add one stream, whose tokens came `tpot_ms` apart on average."""
        self.step_ms = updated_step_ms(self.step_ms, tpot_ms)
        self.steps += 1
        self.version += 1


class LearntSpeed:
    """One worker's speed: its own samples, shrunk towards those of all workers of the same models.

    While a worker has few samples, its operator's rating is used in place of the others' samples, since the worker
    may be another GPU than theirs; without a rating, what its engine reports is used.
    """

    __slots__ = (
        "_rated_ms_per_token",
        "_seen",
        "_speed",
        "fleet",
        "own",
        "reported_ms_per_token",
        "sample_asked_at",
    )

    def __init__(self, speed: Speed | None = None, *, rated_ms_per_token: float | None = None) -> None:
        """`rated_ms_per_token`: milliseconds of prefill for one token, as the settings rate the worker."""
        self._rated_ms_per_token = rated_ms_per_token
        self.reported_ms_per_token: float | None = None
        """What a prompt token has taken the engine by its own report; None: it does not report it."""
        self._speed = self._rated(speed if speed is not None else Speed())
        self.own = SpeedSamples(PrefillFit.from_speed(self._speed), self._speed.step_ms)
        self.fleet: SpeedSamples | None = None
        """The samples of all workers that serve the same models; None: it shares none yet."""
        self.sample_asked_at = float("-inf")
        """When a request was last streamed for the sake of a sample."""
        self._seen = (0, 0)

    @property
    def fit(self) -> PrefillFit:
        """The worker's own prefill samples."""
        return self.own.fit

    @property
    def speed(self) -> Speed:
        """The speed to predict with, as of the last sample."""
        fleet = self.fleet
        if fleet is None:
            return self._speed
        seen = (self.own.version, fleet.version)
        # The samples of other workers alone do not move a worker whose fit has converged; with each of its own the
        # fleet still has a small weight (`shrunk_speed`).
        if seen != self._seen and (seen[0] != self._seen[0] or not self.own.fit.converged):
            self._seen = seen
            self._shrink(fleet)
        return self._speed

    def join(self, fleet: SpeedSamples) -> None:
        """Share the samples of the workers that serve the same models, from now on."""
        if self.fleet is not fleet:
            self.fleet = fleet
            if not self.own.fit.samples and fleet.version:
                self._begin(fleet)

    def report(self, ms_per_token: float, fleet: SpeedSamples) -> None:
        """Take over what a token has taken the engine, by its own report."""
        self.reported_ms_per_token = ms_per_token
        self.fleet = fleet
        if not self.own.fit.samples:
            self._begin(fleet)
        elif not self.own.fit.converged:
            self._shrink(fleet)

    def _begin(self, fleet: SpeedSamples) -> None:
        """Assume the speed of the others: nothing is known of this worker yet."""
        self.own.fit = PrefillFit.from_speed(self._rated(fleet.fit.speed(self._speed)))
        self.own.step_ms = fleet.step_ms
        self._shrink(fleet)

    def _shrink(self, fleet: SpeedSamples) -> None:
        own = self.own
        self._speed = shrunk_speed(
            own.fit,
            self._rated(fleet.fit),
            steps=own.steps,
            step_ms=own.step_ms,
            fleet_step_ms=fleet.step_ms,
        )

    def _rated(self, known: Known) -> Known:
        rating = self._rated_ms_per_token
        if rating is None:
            rating = self.reported_ms_per_token
        return replace(known, ms_per_token=rating) if rating is not None else known


@dataclass(slots=True)
class FleetSpeeds:
    """The samples of all workers, by the set of models that they serve.

    Of more than MODELS_MAX different sets, the later workers share no samples.
    """

    _by_models: dict[frozenset[str], SpeedSamples] = field(default_factory=dict)

    def learn_first_token(
        self, models: frozenset[str], learnt: LearntSpeed, *, tokens: int, ttft_ms: float
    ) -> None:
        """Learn from a first token that came `ttft_ms` after dispatch, with `tokens` uncached tokens to compute."""
        samples = self._by_models.get(models) or self._of(models)
        if learnt.fleet is not samples:
            learnt.join(samples)
        samples.learn_prefill(tokens, ttft_ms)
        learnt.own.learn_prefill(tokens, ttft_ms)

    def learn_step(self, models: frozenset[str], learnt: LearntSpeed, *, tpot_ms: float) -> None:
        """Learn from a stream whose tokens came `tpot_ms` apart on average."""
        samples = self._by_models.get(models) or self._of(models)
        if learnt.fleet is not samples:
            learnt.join(samples)
        samples.learn_step(tpot_ms)
        learnt.own.learn_step(tpot_ms)

    def joined(self, models: frozenset[str], learnt: LearntSpeed) -> None:
        """Let a worker that begins to serve these models share their samples."""
        learnt.join(self._of(models))

    def reported(self, models: frozenset[str], learnt: LearntSpeed, ms_per_token: float) -> None:
        """Take over what a token has taken the worker, as its engine reports it."""
        learnt.report(ms_per_token, self._of(models))

    def _of(self, models: frozenset[str]) -> SpeedSamples:
        samples = self._by_models.get(models)
        if samples is None:
            seed = Speed()
            samples = SpeedSamples(PrefillFit.from_speed(seed), seed.step_ms)
            if len(self._by_models) < MODELS_MAX:
                self._by_models[models] = samples
        return samples
