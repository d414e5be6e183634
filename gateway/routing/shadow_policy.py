"""A second routing policy that looks over the first one's shoulder: what would it have done, and at what cost?

It ranks every request that is dispatched, on the same candidates at the same moment, and nothing comes of it but a
count: how often it would have chosen another worker, and what its choice would have cost in predicted time to the
first token (its regret; below zero where it would have been faster). The prediction is the latency model's, so
that policies which know no milliseconds are compared too.

A second policy that fails fails nobody: that is counted, and the first one decides alone.

Once the figures look well, a share of the requests can really be given to it.
"""

import logging
from collections.abc import Sequence

from policies.latency_model import predicted_ttft_ms
from policies.routing.checked_policy import PolicyContractBroken, checked
from policies.routing.protocol import Candidate, Ranking, Route, RoutingPolicy
from workers.worker import WorkerSnapshot

log = logging.getLogger(__name__)


class Shadow:
    """`share`: of the requests, 0 to 1, that it decides.

    `compared`: requests that it ranked; `differed`: of these, where it chose another worker;
    `regret_seconds`, `gain_seconds`: sums of what its choices would have cost more, and less.
    `failures`: rankings that it was asked for in vain.
    """

    def __init__(self, policy: RoutingPolicy, share: float) -> None:
        self.policy = checked(policy)
        self.share = share
        self.compared = 0
        self.differed = 0
        self.regret_seconds = 0.0
        self.gain_seconds = 0.0
        self.failures = 0

    def failed(self, err: PolicyContractBroken) -> None:
        """It has no ranking. The first time says why; a line for each request would fill a disk."""
        self.failures += 1
        if self.failures == 1:
            log.warning("the second policy has no say: %s", err)

    def compare(
        self, prompt_tokens: int, candidates: Sequence[Candidate], primary: Ranking, shadow: Ranking
    ) -> None:
        """Counts what the two would do first."""
        if not primary or not shadow:
            return
        self.compared += 1
        if shadow[0].worker == primary[0].worker:
            return
        self.differed += 1
        workers = {candidate.worker.id: candidate.worker for candidate in candidates}

        def seconds(route: Route) -> float:
            computes = workers[route.prefill_worker or route.worker]
            return _ttft_ms(computes, prompt_tokens - route.matched_tokens) / 1000

        regret = seconds(shadow[0]) - seconds(primary[0])
        if regret > 0:
            self.regret_seconds += regret
        else:
            self.gain_seconds -= regret


def _ttft_ms(worker: WorkerSnapshot, uncached_tokens: int) -> float:
    ahead = worker.tokens_queued - worker.tokens_computed
    return predicted_ttft_ms(worker.speed, ahead + max(1, uncached_tokens))
