"""What the rules without an estimate have in common: an order, and a reason."""

from collections.abc import Sequence

from policies.routing.protocol import Candidate, Ranking, Route, RouteQuery


def fewest_streams(candidates: Sequence[Candidate]) -> list[Candidate]:
    """In their own order where equal, as these products do it."""
    return sorted(candidates, key=lambda candidate: candidate.worker.streams)


def ranking(query: RouteQuery, ordered: Sequence[Candidate], reason: str) -> Ranking:
    """Routes in this order; the reason is the first one's."""
    return tuple(
        Route(
            worker=candidate.worker.id,
            cost_ms=0.0,
            matched_tokens=min(candidate.matched_tokens, query.prompt_tokens),
            reason=reason if at == 0 else "next in order",
        )
        for at, candidate in enumerate(ordered)
    )
