"""The speeds of a simulated fleet's workers, as one gateway learns them from answers.

In a fleet of equal workers without service classes only the time of a step is learnt.
"""

from collections.abc import Callable

from msgspec.structs import replace

from policies.admission.ttft_chance import MeetsTarget
from policies.latency_model import updated_step_ms
from policies.simulation.scenario import Scenario
from policies.simulation.trace import MODEL
from policies.speeds import FleetSpeeds, LearntSpeed
from workers.worker import Speed

SPEEDS_MAX = 64
"""Workers whose speeds are averaged, as in gateway/queueing/dispatch_windows.py."""

MODELS = frozenset({MODEL})
"""What the simulated workers serve."""


class WorkerSpeeds:
    """The speed of each worker, by its place in the fleet."""

    def __init__(self, scenario: Scenario, workers: int, changed: Callable[[int], None]) -> None:
        """Begin with the speed of the scenario. `changed` is called with a worker whose speed has changed."""
        self.of = [Speed(ms_per_token=scenario.times.ms_per_token)] * workers
        """The speeds that times are predicted with."""
        self._changed = changed
        self._fleet = FleetSpeeds()
        learns = scenario.speeds or scenario.classes
        self._learnt = [_learnt(scenario, at) for at in range(workers)] if learns else []
        for worker, learnt in enumerate(self._learnt):
            self.of[worker] = learnt.speed

    @property
    def ms_per_token(self) -> float:
        """The workers' mean prefill time of a token."""
        speeds = self.of[:SPEEDS_MAX]
        return sum(speed.ms_per_token for speed in speeds) / len(speeds)

    def meets(self, meets: MeetsTarget, worker: int, tokens: int, left_ms: float) -> bool:
        """Return whether a worker meets a target `left_ms` from now, with so many tokens to compute until then."""
        return not self._learnt or meets(self.of[worker], self._learnt[worker].fit, tokens, left_ms)

    def learn_first_token(self, worker: int, tokens: int, ttft_ms: float) -> None:
        """Learn from a first token `ttft_ms` after dispatch, with `tokens` to compute."""
        if self._learnt:
            self._fleet.learn_first_token(MODELS, self._learnt[worker], tokens=tokens, ttft_ms=ttft_ms)
            self._follow()

    def learn_step(self, worker: int, tpot_ms: float) -> None:
        """Learn from a stream with tokens that came `tpot_ms` apart."""
        if self._learnt:
            self._fleet.learn_step(MODELS, self._learnt[worker], tpot_ms=tpot_ms)
            self._follow()
        else:
            speed = self.of[worker]
            self.of[worker] = replace(speed, step_ms=updated_step_ms(speed.step_ms, tpot_ms))
            self._changed(worker)

    def _follow(self) -> None:
        """Take over the learnt speeds: an answer of one worker changes those of all."""
        for worker, learnt in enumerate(self._learnt):
            if learnt.speed is not self.of[worker]:
                self.of[worker] = learnt.speed
                self._changed(worker)


def _learnt(scenario: Scenario, worker: int) -> LearntSpeed:
    """Return what is known at first of the speed of a worker in a fleet of unequal ones."""
    rated = scenario.times_of(worker).ms_per_token if scenario.speeds and scenario.speeds_rated else None
    return LearntSpeed(Speed(ms_per_token=scenario.times.ms_per_token), rated_ms_per_token=rated)
