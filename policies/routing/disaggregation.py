"""Routes for disaggregated serving, where a prompt and its answer may be computed on two workers.

Any policy ranks single workers; this file turns its ranking into routes of prefill and decode workers:

    prefill worker   as the policy ranks the prefill workers for the prompt alone, by prefix and queue
    decode worker    least of  move + room + slow  over the decode workers of the same kind, in milliseconds

    move = MOVE_MS_PER_TOKEN (prompt - matched)         KV that has to be brought there
    room = as in estimate.py                            until streams that end have made room, if it does not fit
    slow = E (DECODE_SLOWDOWN_MS K / KV + STREAM_MS R)  steps that a fuller KV and R more streams make longer

    E  output tokens expected     K  tokens of open streams     KV  tokens that fit     R  open streams

A decode worker serves a request alone where it can compute the prompt itself and fewer than `alone_tokens` of the
prompt are left to compute: moving KV would cost more. It also does where no prefill worker is left, and where a
request cannot be split. Workers that serve whole requests compete with the pairs by their estimated cost.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from policies.routing.estimate import kv_wait_ms, matched_tokens
from policies.routing.protocol import Candidate, Ranking, Route, RouteQuery, RoutingPolicy
from workers.worker import Role

MOVE_MS_PER_TOKEN = 0.01
"""Time to move one token's KV: 128 KB a token (8B-class model in 16 bits) over 100 Gbit/s."""

DECODE_SLOWDOWN_MS = 54.0
"""Milliseconds that a decode step gains between empty and full KV; see policies/routing/cost.py."""

STREAM_MS = 0.2
"""Milliseconds that one more stream adds to a decode step."""


def rank_with_pairs(
    policy: RoutingPolicy,
    query: RouteQuery,
    candidates: Sequence[Candidate],
    now: float,
    *,
    alone_tokens: int,
) -> Ranking:
    """Return the policy's ranking of whole workers and of prefill/decode pairs, best first.

    Each prefill worker comes once, with the decode worker that is best for it now.
    """
    for candidate in candidates:
        if candidate.worker.disaggregation is not None:
            return _rank_pairs(policy, query, candidates, now, alone_tokens)
    return policy.rank(query, candidates, now)


def _rank_pairs(
    policy: RoutingPolicy,
    query: RouteQuery,
    candidates: Sequence[Candidate],
    now: float,
    alone_tokens: int,
) -> Ranking:
    """Return the ranking where some candidates are halves of pairs; see rank_with_pairs."""
    halves = [candidate for candidate in candidates if candidate.worker.disaggregation is not None]
    whole = [candidate for candidate in candidates if candidate.worker.disaggregation is None]
    prefills = [one for one in halves if _role(one) is Role.PREFILL]
    decodes = [one for one in halves if _role(one) is Role.DECODE]
    if not query.answers:
        # Nothing is generated, so no KV is handed over.
        return policy.rank(query, [*whole, *decodes] or prefills, now)
    best = _best_by_kind(query, decodes)
    paired_prefills = [one for one in prefills if _can_split(query, one) and _kind(one) in best]
    prefill_kinds = {_kind(prefill) for prefill in prefills}
    alone, little_left = whole, []
    for one in decodes:
        if not _serves_alone(one):
            continue
        if not (_can_split(query, one) and _kind(one) in prefill_kinds):
            alone.append(one)
        elif query.prompt_tokens - matched_tokens(query, one) < alone_tokens:
            little_left.append(one)
    # One call ranks them all, since a policy's cost of one worker may depend on the others. In its routes a prefill
    # worker stands as `worker`, as if it answered; `_paired` makes it the `prefill_worker` of a decode worker.
    ranked_query = query if alone else replace(query, output_tokens=0)
    decode_of = {one.worker.id: best[_kind(one)] for one in paired_prefills}
    routes = [
        _paired(route, *decode_of[route.worker]) if route.worker in decode_of else route
        for route in policy.rank(ranked_query, [*alone, *paired_prefills], now)
    ]
    if alone and paired_prefills:
        routes.sort(key=lambda route: route.cost_ms)
    return (*policy.rank(query, little_left, now), *routes)


def _paired(prefill: Route, decode: Candidate, cost_ms: float) -> Route:
    """Return the route of a prefill worker with the decode worker that answers, `cost_ms` more expensive."""
    worker = decode.worker
    return Route(
        worker=worker.id,
        cost_ms=prefill.cost_ms + cost_ms,
        matched_tokens=prefill.matched_tokens,
        prefill_worker=prefill.worker,
        ms_per_queued_token=prefill.ms_per_queued_token,
        computed_tokens=prefill.computed_tokens,
        terms=prefill.terms,
        reason=f"{prefill.worker} computes the prompt: {prefill.reason}; {worker.id} answers, "
        f"with {worker.streams} streams, {cost_ms:.1f} ms",
    )


def _best_by_kind(query: RouteQuery, decodes: Sequence[Candidate]) -> dict[str, tuple[Candidate, float]]:
    """Return the decode worker of least cost, and that cost in milliseconds, for each kind of worker."""
    best: dict[str, tuple[Candidate, float]] = {}
    for one in decodes:
        cost_ms, kind = _decode_ms(query, one), _kind(one)
        if kind not in best or cost_ms < best[kind][1]:
            best[kind] = one, cost_ms
    return best


def _decode_ms(query: RouteQuery, candidate: Candidate) -> float:
    """Return move + room + slow: the cost of answering here a prompt that is computed on another worker."""
    worker, output_tokens = candidate.worker, query.output_tokens
    moved = query.prompt_tokens - matched_tokens(query, candidate)
    full = min(1.0, worker.kv_tokens / worker.kv_tokens_max) if worker.kv_tokens_max else 0.0
    slow = output_tokens * (DECODE_SLOWDOWN_MS * full + STREAM_MS * worker.streams)
    return MOVE_MS_PER_TOKEN * moved + kv_wait_ms(worker, moved + output_tokens, output_tokens) + slow


def _can_split(query: RouteQuery, half: Candidate) -> bool:
    """Return whether workers of this kind can share the request."""
    profile = half.worker.disaggregation
    assert profile is not None
    return profile.splits_multiple or (query.answers == 1 and not query.answers_prompt)


def _serves_alone(decode: Candidate) -> bool:
    """Return whether a decode worker can compute the prompt itself."""
    profile = decode.worker.disaggregation
    return profile is not None and profile.serves_alone


def _role(candidate: Candidate) -> Role:
    profile = candidate.worker.disaggregation
    return profile.role if profile is not None else Role.BOTH


def _kind(candidate: Candidate) -> str:
    profile = candidate.worker.disaggregation
    return profile.kind if profile is not None else ""
