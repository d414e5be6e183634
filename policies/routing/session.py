"""Policy `session`, sticky sessions: one home worker for all turns of a session, unless that costs too much.

    home    the worker with the highest rendezvous weight for the session
    route   home, if its estimated TTFT is at most `patience_ms` above the least; else the worker with the least

Every gateway computes the same home without any communication, and a worker that comes or goes moves only its own
share of the sessions. A request without a session goes to the worker with the least estimated TTFT (estimate.py).
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.routing.estimate import matched_tokens, ttft_ms
from policies.routing.protocol import Candidate, PolicyOptions, Ranking, Route, RouteQuery
from policies.routing.stable_random import rendezvous_weight


class SessionOptions(PolicyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the policy `session`."""

    patience_ms: Annotated[
        Annotated[float, Meta(ge=0, le=1e9)],
        Meta(description="Estimated milliseconds of TTFT that staying on the home worker may cost."),
    ] = 250.0


class SessionPolicy:
    """The policy `session`."""

    name: ClassVar[str] = "session"
    options_type: ClassVar[type[PolicyOptions]] = SessionOptions

    def __init__(self, options: SessionOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Rank by estimated TTFT, with the home worker first while it is within `patience_ms` of the least."""
        if not candidates:
            return ()
        first = int(query.draw * len(candidates))
        turned = [*candidates[first:], *candidates[:first]]
        costs = {candidate.worker.id: ttft_ms(query, candidate) for candidate in turned}
        ordered = sorted(turned, key=lambda candidate: costs[candidate.worker.id])
        least = costs[ordered[0].worker.id]
        home = None
        if query.session is not None:
            session = query.session
            at = max(range(len(ordered)), key=lambda at: rendezvous_weight(ordered[at].worker.id, session))
            home = ordered[at].worker.id
            if costs[home] <= least + self.options.patience_ms:
                ordered.insert(0, ordered.pop(at))
        return tuple(
            Route(
                worker=candidate.worker.id,
                # Within its patience a session counts its home as no more expensive than the best worker.
                cost_ms=least if at == 0 else costs[candidate.worker.id],
                matched_tokens=matched_tokens(query, candidate),
                reason=_reason(candidate.worker.id == home, home is not None, costs[candidate.worker.id]),
            )
            for at, candidate in enumerate(ordered)
        )


def _reason(at_home: bool, sticky: bool, cost: float) -> str:
    where = "the session's home" if at_home else "not the session's home" if sticky else "no session"
    return f"{where}, TTFT {cost:.1f} ms"
