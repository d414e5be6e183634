"""Ranks the workers for one request, from copies in the process: no I/O."""

import time
from collections.abc import Callable, Collection, Sequence
from random import Random

import msgspec

from gateway.domain.context import RequestContext
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.fleet.fleet import Fleet
from gateway.kv_index.feedback import Feedback
from gateway.models.model_selection import session_key
from gateway.routing.shadow_policy import Shadow
from policies.routing import disaggregation
from policies.routing.checked_policy import PolicyContractBroken
from policies.routing.protocol import Candidate, Ranking, RouteQuery, RoutingPolicy
from radix_cache.index import PrefixIndex
from radix_cache.match import WorkerId
from radix_cache.tiers import Tier, TierBlocks
from workers.worker import WorkerSnapshot

PROMPT_ANSWERED = ("echo", "prompt_logprobs")
"""Fields that ask for something of the prompt in the answer."""


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`routes`: best first. `by_shadow`: the second policy ranked them. `candidates`, `query`: by what."""

    routes: Ranking
    by_shadow: bool
    candidates: list[Candidate]
    query: RouteQuery


class Router:
    """`random`: where policies get their draws from; `clock`: seconds, never backwards. `prefill_tokens_min`: see
    policies/routing/disaggregation.py, `alone_tokens`."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        index: PrefixIndex,
        feedback: Feedback,
        policy: RoutingPolicy,
        random: Random,
        shadow: Shadow | None = None,
        prefill_tokens_min: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._index = index
        self._feedback = feedback
        self._policy = policy
        self._random = random
        self.shadow = shadow
        self._prefill_tokens_min = prefill_tokens_min
        self._clock = clock
        self.policy_name = policy.name
        self._sequence: dict[str, int] = {}

    def decide_by(self, policy: RoutingPolicy, shadow: Shadow | None, prefill_tokens_min: int) -> None:
        """From the next request on."""
        self._policy, self.shadow, self._prefill_tokens_min = policy, shadow, prefill_tokens_min
        self.policy_name = policy.name

    def arrival(self, model: str) -> int:
        """The number of this request among those for its model. One request, one number, however often ranked."""
        number = self._sequence.get(model, 0)
        self._sequence[model] = number + 1
        return number

    def ranked(
        self,
        ctx: RequestContext,
        prompt: PromptBlocks,
        *,
        sequence: int,
        output_tokens: int,
        without: Collection[WorkerId] = (),
        by_shadow: bool = False,
    ) -> Decision:
        """Routes for this request at this moment, best first; `without` those that were tried."""
        match, blocks = self._index.match(prompt.namespace, prompt.hashes), self._feedback.blocks
        now = self._clock()
        candidates = [
            _candidate(
                worker.snapshot(now),
                prompt,
                match.tiers(worker.id),
                known=known,
                counted=blocks(match, worker.id),
            )
            # Most workers of a large fleet hold nothing of a prompt, and need no second look.
            if (known := match.blocks(worker.id))
            else Candidate(worker=worker.snapshot(now))
            for worker in self._fleet.serving(ctx.model.name)
            if worker.id not in without
        ]
        query = RouteQuery(
            prompt_tokens=prompt.prompt_tokens,
            output_tokens=output_tokens,
            sequence=sequence,
            draw=self._random.random(),
            blocks=prompt.hashes,
            block_tokens=prompt.namespace.block_size,
            session=session_key(ctx.request, ctx.tenant),
            answers=ctx.request.answers,
            answers_prompt=any(name in ctx.request.fields for name in PROMPT_ANSWERED),
        )
        routes = self._by_shadow(query, candidates, now) if by_shadow else None
        if routes is None:
            routes, by_shadow = self._rank(self._policy, query, candidates, now), False
        return Decision(routes=routes, by_shadow=by_shadow, candidates=candidates, query=query)

    def _by_shadow(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking | None:
        """None where the second policy fails: nothing may come of that, so the first one decides."""
        if self.shadow is None:
            return None
        try:
            return self._rank(self.shadow.policy, query, candidates, now)
        except PolicyContractBroken as err:
            self.shadow.failed(err)
            return None

    def _rank(
        self, policy: RoutingPolicy, query: RouteQuery, candidates: Sequence[Candidate], now: float
    ) -> Ranking:
        return disaggregation.rank_with_pairs(policy, query, candidates, now, alone_tokens=self._prefill_tokens_min)

    def now_ranked(self, ctx: RequestContext, prompt: PromptBlocks, *, output_tokens: int) -> Decision:
        """As the next request would be, which this one is not: nothing is counted."""
        sequence = self._sequence.get(ctx.model.name, 0)
        return self.ranked(ctx, prompt, sequence=sequence, output_tokens=output_tokens)

    def for_shadow(self) -> bool:
        """Is the next request the shadow policy's to decide?"""
        return self.shadow is not None and self._random.random() < self.shadow.share

    def shadowed(self, decision: Decision) -> None:
        """The request is dispatched as decided: what would the other policy have done?"""
        shadow = self.shadow
        if shadow is None:
            return
        query, candidates, now = decision.query, decision.candidates, self._clock()
        if decision.by_shadow:
            primary, second = self._rank(self._policy, query, candidates, now), decision.routes
        else:
            primary, second = decision.routes, self._by_shadow(query, candidates, now) or ()
        shadow.compare(query.prompt_tokens, candidates, primary, second)


def _candidate(
    worker: WorkerSnapshot, prompt: PromptBlocks, held: TierBlocks, *, known: int, counted: int
) -> Candidate:
    """`counted`: of all that is `known` to be held, what is to be counted on."""
    doubted = prompt.matched_tokens(known) - prompt.matched_tokens(counted) if known > counted else 0
    if held.gpu >= counted:
        return Candidate(worker=worker, matched_tokens=prompt.matched_tokens(counted), doubted_tokens=doubted)
    gpu, near, matched = map(prompt.matched_tokens, held.lowered(Tier.DISK, counted))
    return Candidate(
        worker=worker,
        matched_tokens=matched,
        host_tokens=near - gpu,
        disk_tokens=matched - near,
        doubted_tokens=doubted,
    )
