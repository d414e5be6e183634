"""Shared code of the baselines without a cost estimate: an order of the workers, and rankings made of it."""

from collections.abc import Sequence

from policies.routing.protocol import Candidate, Ranking, Route, RouteQuery


def fewest_streams(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates by their number of streams; equal ones keep their order, as in these products."""
    return sorted(candidates, key=lambda candidate: candidate.worker.streams)


def ranking(query: RouteQuery, ordered: Sequence[Candidate], reason: str) -> Ranking:
    """Return routes in this order; `reason` is the reason of the first."""
    return tuple(
        Route(
            worker=candidate.worker.id,
            cost_ms=0.0,
            matched_tokens=min(candidate.matched_tokens, query.prompt_tokens),
            reason=reason if at == 0 else "next in order",
        )
        for at, candidate in enumerate(ordered)
    )
