"""How far to trust what the index knows of a worker: a share of its blocks that routing counts on.

    certain                           1
    some of its events were lost      1/2, and then what answers report, until that is nearly all
    a hybrid model                    1/2, and then what answers report: a prefix may be held and not be usable

Feedback moves this one number, and not the counts in the tree: it is not known which of them are wrong. It is this
gateway's own, learnt from its own answers; that there is doubt it hears from whoever follows the worker's events.
"""

from dataclasses import dataclass

from radix_cache.match import WorkerId

DOUBTED = 0.5
HEALED = 0.95
LEARNING_RATE = 0.2


@dataclass(slots=True)
class _Doubt:
    credit: float
    losses: int | None
    hybrid: bool


class MatchConfidence:
    """By worker; who is not mentioned has all of it."""

    def __init__(self) -> None:
        self._doubts: dict[WorkerId, _Doubt] = {}
        self._healed: dict[WorkerId, int] = {}

    def of(self, worker: WorkerId) -> float:
        """0 to 1."""
        doubt = self._doubts.get(worker)
        return doubt.credit if doubt is not None else 1.0

    def hybrid(self, worker: WorkerId) -> bool:
        doubt = self._doubts.get(worker)
        return doubt is not None and doubt.hybrid

    def doubted(self) -> set[WorkerId]:
        return set(self._doubts)

    def hear(self, worker: WorkerId, *, losses: int | None, hybrid: bool) -> None:
        """Whoever follows it says so. `losses`: how often events were lost, None if nothing is missing."""
        doubt = self._doubts.get(worker)
        if losses is None:
            self._healed.pop(worker, None)
        news = losses is not None and losses != (doubt.losses if doubt is not None else None)
        if news and self._healed.get(worker) == losses:
            losses, news = None, False
        if losses is None and not hybrid:
            self._doubts.pop(worker, None)
        elif doubt is None:
            self._doubts[worker] = _Doubt(DOUBTED, losses, hybrid)
        else:
            doubt.credit = min(doubt.credit, DOUBTED) if news else doubt.credit
            doubt.losses, doubt.hybrid = losses, hybrid

    def learn(self, worker: WorkerId, known: int, reported: int) -> None:
        """An answer's worker had cached so many of the blocks that the index knew it to hold."""
        doubt = self._doubts.get(worker)
        if doubt is None or known <= 0:
            return
        doubt.credit += LEARNING_RATE * (min(reported / known, 1.0) - doubt.credit)
        if doubt.credit >= HEALED and not doubt.hybrid:
            if doubt.losses is not None:
                self._healed[worker] = doubt.losses
            del self._doubts[worker]
