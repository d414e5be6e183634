"""A second worker for a request that has no first byte in time, and what becomes of both; see hedging.py.

async with second.answer(leg, asked, seconds, call) as answer:      # of whichever leg leads then
    ...
"""

from collections.abc import AsyncIterator, Callable, Sized
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from gateway.dispatch.attempt import Keeper, Leg, Legs
from gateway.dispatch.hedging import Hedging, Opening, bears_twice, first_of
from gateway.dispatch.placement import Placed
from gateway.dispatch.ttft_target import SAMPLES_MIN
from gateway.dispatch.worker_acquisition import Turn
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.quotas.quota import Lease
from gateway.telemetry.record import Progress
from policies.admission.retry_budget import RetryBudget
from policies.latency_model import predicted_ttft_p95_ms
from workers.adapter import WorkerAnswer, WorkerCall, WorkerUnreachable


class Seconder(Keeper, Protocol):
    """What it is held with; see Reservations."""

    retries: RetryBudget
    hedging: Hedging


class Second:
    """Of one request; it has one once. `tried`: workers that have failed at it."""

    def __init__(
        self,
        by: Seconder,
        prompt: PromptBlocks,
        progress: Progress,
        lease: Lease,
        turn: Turn,
        legs: Legs,
        tried: Sized,
    ) -> None:
        self._by = by
        self._prompt = prompt
        self._progress = progress
        self._lease = lease
        self._turn = turn
        self._legs = legs
        self._tried = tried
        self._sent = False

    def patience_seconds(self, placed: Placed) -> float | None:
        """After so long without a first byte a second worker gets it too; None: it is not for two."""
        by, rules, prompt = self._by, self._by.hedging, self._prompt
        if (
            not rules.enabled
            or placed.outside
            or self._sent
            or self._turn.background
            or prompt.prompt_tokens > rules.prompt_tokens_max
            or len(self._tried) + 2 > by.bounds.attempts_max
            or not bears_twice(self._lease)
        ):
            return None
        if rules.after_seconds is not None:
            return rules.after_seconds
        learnt = placed.computes.learnt
        if learnt.fit.samples < SAMPLES_MIN:
            return None
        return predicted_ttft_p95_ms(learnt.speed, learnt.fit.error_ms, placed.tokens_ahead) / 1000

    @asynccontextmanager
    async def answer(
        self,
        leg: Leg,
        asked: WorkerCall,
        seconds: float,
        call: Callable[[Placed], WorkerCall],
        *,
        blame: Callable[[Placed, WorkerUnreachable], None],
        leads: Callable[[Leg], None],
    ) -> AsyncIterator[WorkerAnswer]:
        """Of `leg`, or of a second one from `seconds` on; the other is let go. Raises WorkerUnreachable.

        `blame`: whose failure it was; `leads`: told if the second answers, or is left alone.
        """
        legs, outcome, ahead = dict[Opening, Leg](), "left", leg

        async def another() -> Opening | None:
            if (second := await self._leg(leg, first)) is None:
                return None
            opening = Opening(second.placed.through.stream(call(second.placed)))
            legs[opening] = second
            return opening

        def lead(which: Leg) -> None:
            nonlocal ahead
            if which is not ahead:
                ahead = which
                leads(which)
                self._legs.told(which)

        def failed(opening: Opening, err: WorkerUnreachable | None) -> None:
            nonlocal outcome
            gone = legs[opening]
            if err is not None:
                blame(gone.placed, err)
            if gone is leg:
                lead(next(other for other in legs.values() if other is not leg))
            else:
                outcome = "failed"
            self._legs.drop(gone)

        first = Opening(leg.placed.through.stream(asked))
        legs[first] = leg
        async with AsyncExitStack() as stack:
            try:
                winner = await first_of(first, seconds, another, failed)
                stack.push_async_exit(winner.stream)
                lead(legs.pop(winner))
                if ahead is not leg:
                    outcome = "won"
                elif outcome != "failed":
                    outcome = "lost"
            except WorkerUnreachable:
                outcome = "failed"
                raise
            finally:
                # Their places are free at once, and then they are hung up on.
                for other in legs.values():
                    if other is not ahead and not other.over:
                        self._legs.drop(other)
                for opening in legs:
                    await opening.close()
                if self._sent:
                    self._by.hedging.outcomes[outcome] += 1
            yield winner.task.result()

    async def _leg(self, first: Leg, opening: Opening) -> Leg | None:
        """A place for the same request, sent once more; None if there is none, or too many are sent again."""
        by = self._by
        placed = await self._turn.besides(first.placed) if by.retries.remaining(by.clock()) else None
        if placed is None:
            return None
        if opening.task.done():
            by.leave(placed, 0.0)  # The first was just in time.
            return None
        by.retries.try_spend(by.clock())
        self._progress.mark("hedge")
        self._sent = True
        return self._legs.sent(placed)
