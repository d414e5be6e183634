"""The confidence in the index for each worker: the share of its indexed blocks that routing counts on.

    no doubt                          1
    some of its events were lost      1/2, then the share that answers report, until that is nearly 1
    a hybrid model                    1/2, then the share that answers report: a held prefix may be unusable

Feedback changes this number and not the counts in the tree, because it is unknown which of the counts are wrong.
Each gateway learns the share from its own answers. Whether there is doubt, it learns from the gateway that follows
the worker's events.
"""

from collections.abc import Collection
from dataclasses import dataclass

from radix_cache.match import WorkerId

DOUBTED_CONFIDENCE = 0.5
HEALED_CONFIDENCE = 0.95
LEARNING_RATE = 0.2


@dataclass(slots=True)
class _Doubt:
    confidence: float
    losses: int | None
    hybrid: bool


class MatchConfidence:
    """The confidence in the index by worker; a worker without doubt has 1."""

    def __init__(self) -> None:
        self._doubts: dict[WorkerId, _Doubt] = {}
        self._healed: dict[WorkerId, int] = {}
        """How many losses of a worker's events answers have made up for: these raise no doubt again."""

    def of(self, worker: WorkerId) -> float:
        """Return the confidence for a worker: 0 to 1."""
        doubt = self._doubts.get(worker)
        return doubt.confidence if doubt is not None else 1.0

    def is_hybrid(self, worker: WorkerId) -> bool:
        """Return whether the worker serves a hybrid model."""
        doubt = self._doubts.get(worker)
        return doubt is not None and doubt.hybrid

    def keep_only(self, workers: Collection[WorkerId]) -> None:
        """Drop the confidence in all other workers."""
        for kept in (self._doubts, self._healed):
            for worker in [each for each in kept if each not in workers]:
                del kept[worker]

    def update(self, worker: WorkerId, *, losses: int | None, hybrid: bool) -> None:
        """Take over the report of the gateway that follows the worker.

        Args:
            worker: The worker.
            losses: How often its events were lost; None if none are missing.
            hybrid: Whether it serves a hybrid model.
        """
        doubt = self._doubts.get(worker)
        if losses is None:
            self._healed.pop(worker, None)
        new_losses = losses is not None and losses != (doubt.losses if doubt is not None else None)
        if new_losses and self._healed.get(worker) == losses:
            losses, new_losses = None, False
        if losses is None and not hybrid:
            self._doubts.pop(worker, None)
        elif doubt is None:
            self._doubts[worker] = _Doubt(DOUBTED_CONFIDENCE, losses, hybrid)
        else:
            doubt.confidence = min(doubt.confidence, DOUBTED_CONFIDENCE) if new_losses else doubt.confidence
            doubt.losses, doubt.hybrid = losses, hybrid

    def learn(self, worker: WorkerId, known: int, reported: int) -> None:
        """Learn that a worker reported `reported` of the `known` blocks as cached."""
        doubt = self._doubts.get(worker)
        if doubt is None or known <= 0:
            return
        doubt.confidence += LEARNING_RATE * (min(reported / known, 1.0) - doubt.confidence)
        if doubt.confidence >= HEALED_CONFIDENCE and not doubt.hybrid:
            if doubt.losses is not None:
                self._healed[worker] = doubt.losses
            del self._doubts[worker]
