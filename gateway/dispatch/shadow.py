"""A second routing policy that looks over the first one's shoulder: what would it have done, and at what cost?

It ranks every request that is dispatched, on the same candidates at the same moment, and nothing comes of it but a
count: how often it would have chosen another worker, and what its choice would have cost in predicted time to the
first token (its regret; below zero where it would have been faster). The prediction is the latency model's, so
that policies which know no milliseconds are compared too.

Once the figures look well, a share of the requests can really be given to it.
"""

from collections.abc import Sequence

from policies.latency_model import predicted_ttft_ms
from policies.routing.protocol import Candidate, Ranking, Route, RoutingPolicy
from workers.worker import WorkerSnapshot


class Shadow:
    """`share`: of the requests, 0 to 1, that it decides.

    `compared`: requests that it ranked; `differed`: of these, where it chose another worker;
    `regret_seconds`, `gain_seconds`: sums of what its choices would have cost more, and less.
    """

    def __init__(self, policy: RoutingPolicy, share: float) -> None:
        self.policy = policy
        self.share = share
        self.compared = 0
        self.differed = 0
        self.regret_seconds = 0.0
        self.gain_seconds = 0.0

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
            return _ttft_ms(workers[route.worker], prompt_tokens - route.matched_tokens) / 1000

        regret = seconds(shadow[0]) - seconds(primary[0])
        if regret > 0:
            self.regret_seconds += regret
        else:
            self.gain_seconds -= regret


def _ttft_ms(worker: WorkerSnapshot, uncached_tokens: int) -> float:
    return predicted_ttft_ms(worker.speed, worker.tokens_queued + max(1, uncached_tokens))
