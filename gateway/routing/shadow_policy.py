"""The shadow policy: a second routing policy, compared with the first by its choices and what they would cost.

It ranks every request that is dispatched, on the same candidates at the same moment, and only figures come of it:
how often it would have chosen another worker, and what its choice would have cost in predicted time to first token
(its regret; negative where it would have been faster). The prediction is the latency model's, so that policies
which estimate no milliseconds are compared too.

A second policy that fails does not fail any request: its failure is counted, and the first policy decides alone.

Once the figures look well, a share of the requests can really be given to the second policy.
"""

import logging
from collections.abc import Sequence

from policies.latency_model import predicted_ttft_ms
from policies.routing.checked_policy import PolicyContractBroken, checked
from policies.routing.protocol import Candidate, Ranking, Route, RoutingPolicy
from workers.worker import WorkerSnapshot

log = logging.getLogger(__name__)


class ShadowPolicy:
    """A routing policy that ranks requests beside the first policy, and how the two compared."""

    def __init__(self, policy: RoutingPolicy, share: float) -> None:
        """`share`: of the requests, 0 to 1, that this policy decides."""
        self.policy = checked(policy)
        self.share = share
        self.compared = 0
        """Requests that both policies ranked."""
        self.differed = 0
        """Of these, the requests for which the policies chose different workers."""
        self.regret_seconds = 0.0
        """Sum of predicted TTFT that its choices would have cost more."""
        self.gain_seconds = 0.0
        """Sum of predicted TTFT that its choices would have cost less."""
        self.failures = 0
        """Rankings that it failed to make."""

    def count_failure(self, err: PolicyContractBroken) -> None:
        """Count a failure. Only the first is logged: a line for each request would fill a disk."""
        self.failures += 1
        if self.failures == 1:
            log.warning("the shadow policy cannot rank requests: %s", err)

    def compare(
        self, prompt_tokens: int, candidates: Sequence[Candidate], primary: Ranking, shadow: Ranking
    ) -> None:
        """Count what the two policies would choose first."""
        if not primary or not shadow:
            return
        self.compared += 1
        if shadow[0].worker == primary[0].worker:
            return
        self.differed += 1
        workers = {candidate.worker.id: candidate.worker for candidate in candidates}

        def seconds(route: Route) -> float:
            prefill_worker = workers[route.prefill_worker or route.worker]
            return _ttft_ms(prefill_worker, prompt_tokens - route.matched_tokens) / 1000

        regret = seconds(shadow[0]) - seconds(primary[0])
        if regret > 0:
            self.regret_seconds += regret
        else:
            self.gain_seconds -= regret


def _ttft_ms(worker: WorkerSnapshot, uncached_tokens: int) -> float:
    ahead = worker.tokens_queued - worker.tokens_computed
    return predicted_ttft_ms(worker.speed, ahead + max(1, uncached_tokens))
