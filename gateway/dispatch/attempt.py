"""Workers that have one request: mostly one, for a while two (hedging.py). What is kept of each, and given back.

leg = legs.sent(placed)
legs.leave(leg)             it has answered, or was the last that did not
legs.drop(leg)              or another one goes on
"""

import logging
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.dispatch import costs
from gateway.dispatch.placement import Placed
from gateway.dispatch.seats import Parts
from gateway.dispatch.worker_acquisition import Turn
from gateway.domain.context import RequestContext
from gateway.domain.prompt_blocks import NO_HASHES, PromptBlocks
from gateway.kv_index.feedback import Expectation, Feedback
from gateway.telemetry.record import Progress
from policies.latency_model import predicted_ttft_ms
from radix_cache.index import PrefixIndex

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Leg:
    """One worker that has the request, and what was known of its cache then. `over`: its place was given back."""

    placed: Placed
    expected: Expectation
    over: bool = False


class Keeper(Parts, Protocol):
    """What legs are kept with; see Reservations."""

    index: PrefixIndex
    feedback: Feedback

    def leave(self, placed: Placed, cost_change: float) -> bool: ...


class Legs:
    """Those of one request. `by_shadow`: the second policy chooses its workers."""

    def __init__(
        self,
        by: Keeper,
        ctx: RequestContext,
        prompt: PromptBlocks,
        progress: Progress,
        turn: Turn,
        *,
        by_shadow: bool,
    ) -> None:
        self._by = by
        self._ctx = ctx
        self._prompt = prompt
        self._progress = progress
        self._turn = turn
        self._by_shadow = by_shadow

    def sent(self, placed: Placed) -> Leg:
        """It gets the request now; call it before the index is told."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug("request %s goes to %s: %s", self._ctx.id, placed.worker.id, placed.route.reason)
        prompt = self._prompt
        if placed.outside:
            prompt = msgspec.structs.replace(
                prompt, hashes=NO_HASHES
            )  # Nothing is known of its cache, nor learnt.
        return Leg(placed, self._by.feedback.sent(placed.computes.id, prompt))

    def told(self, leg: Leg) -> None:
        """The account of the request names the worker that answers, or is to."""
        placed = leg.placed
        self._progress.assign_worker(
            placed.worker.id,
            dispatched_at=placed.since,
            by_shadow=self._by_shadow and not placed.outside,
            reason=placed.route.reason,
            predicted_tokens=placed.route.matched_tokens,
            predicted_ttft_seconds=predicted_ttft_ms(placed.computes.speed, placed.tokens_ahead) / 1000,
            prefill_worker=placed.computes.id if placed.computes is not placed.worker else None,
        )

    def leave(self, leg: Leg) -> None:
        """The place of the leg that has answered, or of the last one that has not."""
        placed, progress = leg.placed, self._progress
        progress.usage = placed.cached(progress.usage)
        if progress.usage is not None and self._prompt.exact:
            self._by.feedback.reported(leg.expected, self._ctx.id, progress.usage.cached_tokens)
        used = None
        if not placed.outside:
            self._learn(placed)
            used = costs.used(progress, self._ctx.model.prices)
        elif placed.allowance is not None:
            self._by.allowances.settle(placed.allowance, costs.used(progress, placed.prices(self._ctx.model)))
        # What a provider has computed, nobody waited for here: it is no part of a share in the queue.
        change = self._turn.cost_change(used)
        if not self.drop(leg, change):
            self._turn.settle(change)

    def unused(self, placed: Placed | None) -> None:
        """Gives a place back, if there is one, to which nothing was sent."""
        if placed is None:
            return
        if placed.allowance is not None:
            self._by.allowances.give_back(placed.allowance)
        change = self._turn.cost_change(None)
        if not self._by.leave(placed, change):
            self._turn.settle(change)

    def drop(self, leg: Leg, cost_change: float = 0.0) -> bool:
        """Gives a place back; see Reservations.leave."""
        leg.over = True
        self._by.feedback.left(leg.expected)
        self._by.index.withdraw(leg.placed.computes.id, self._ctx.id)
        return self._by.leave(leg.placed, cost_change)

    def _learn(self, placed: Placed) -> None:
        """How long the first token took for so many tokens; what was cached is known best at the end."""
        progress = self._progress
        tpot = progress.tpot_seconds()
        if tpot is not None and progress.worker == placed.worker.id:
            self._by.fleet.step(placed.worker, tpot * 1000)
        if progress.worker_ttft_seconds is None:
            return
        tokens, usage = placed.tokens_ahead, progress.usage
        if usage is not None and usage.cached_tokens is not None:
            tokens += min(placed.route.matched_tokens, self._prompt.prompt_tokens) - usage.cached_tokens
        self._by.fleet.first_token(
            placed.computes, tokens=max(1, tokens), ttft_ms=progress.worker_ttft_seconds * 1000
        )
