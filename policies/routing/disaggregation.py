"""Routes where a prompt and its answer may be computed on two workers: any policy's ranking, made to pairs.

    halves     prefill: as the policy ranks them for the prompt alone, by prefix and queue
               decode:  least of  move + room + slow       over the workers of the same kind

    move = t (prompt - matched)                KV that has to be brought there
    room = as policies/routing/estimate.py     until streams that end have made room for it, if it does not fit
    slow = E (54 K / KV + h R)                 steps that a fuller KV and R more streams make longer

    t  ms to move one token's KV     E  output tokens expected     K  tokens of open streams of KV that fit
    h  ms that a stream adds to a step

A decode worker serves alone where it can compute the prompt and fewer than `alone_tokens` of it are left:
moving KV would cost more. It also does where no prefill worker is left, and where a request cannot be split.
Workers that are no halves compete with the pairs by their estimated cost.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from policies.routing.estimate import kv_wait_ms, matched_tokens
from policies.routing.protocol import Candidate, Ranking, Route, RouteQuery, RoutingPolicy
from workers.worker import Role

MOVE_MS_PER_TOKEN = 0.01
"""128 KB a token (8B-class model in 16 bits) over 100 Gbit/s."""

DECODE_SLOWDOWN_MS = 54.0
"""Milliseconds a step gains between empty and full KV; see policies/routing/cost.py."""

STREAM_MS = 0.2


def ranked(
    policy: RoutingPolicy,
    query: RouteQuery,
    candidates: Sequence[Candidate],
    now: float,
    *,
    alone_tokens: int,
) -> Ranking:
    """What the policy makes of whole workers, and of pairs of halves; best first. Each prefill worker comes once,
    with the decode worker that is best now."""
    halves = [candidate for candidate in candidates if candidate.worker.half is not None]
    if not halves:
        return policy.rank(query, candidates, now)
    whole = [candidate for candidate in candidates if candidate.worker.half is None]
    prefills = [one for one in halves if _role(one) is Role.PREFILL]
    decodes = [one for one in halves if _role(one) is Role.DECODE]
    if not query.answers:
        # Nothing is generated, and nothing handed over.
        return policy.rank(query, [*whole, *decodes] or prefills, now)
    best = _best_by_kind(query, decodes)
    able = [one for one in decodes if one.worker.half is not None and one.worker.half.alone]
    kinds = {_kind(prefill) for prefill in prefills}
    split = [one for one in able if _splits(query, one) and _kind(one) in kinds]
    short = [one for one in split if query.prompt_tokens - matched_tokens(query, one) < alone_tokens]
    alone = [*whole, *(one for one in able if one not in split)]
    firsts = [one for one in prefills if _splits(query, one) and _kind(one) in best]
    # One call, for what a policy makes of a worker may depend on all of them.
    asked = query if alone else replace(query, output_tokens=0)
    prompts = {one.worker.id: best[_kind(one)] for one in firsts}
    routes = [
        _pair(route, *prompts[route.worker]) if route.worker in prompts else route
        for route in policy.rank(asked, [*alone, *firsts], now)
    ]
    if alone and firsts:
        routes.sort(key=lambda route: route.cost_ms)
    return (*policy.rank(query, short, now), *routes)


def _pair(prompt: Route, decode: Candidate, cost_ms: float) -> Route:
    """The route of a prompt, and where it goes from there."""
    worker = decode.worker
    return replace(
        prompt,
        worker=worker.id,
        prefill_worker=prompt.worker,
        cost_ms=prompt.cost_ms + cost_ms,
        reason=f"{prompt.worker} computes the prompt: {prompt.reason}; {worker.id} answers, "
        f"with {worker.streams} streams, {cost_ms:.1f} ms",
    )


def _best_by_kind(query: RouteQuery, decodes: Sequence[Candidate]) -> dict[str, tuple[Candidate, float]]:
    best: dict[str, tuple[Candidate, float]] = {}
    for one in decodes:
        cost_ms, kind = _decode_ms(query, one), _kind(one)
        if kind not in best or cost_ms < best[kind][1]:
            best[kind] = one, cost_ms
    return best


def _decode_ms(query: RouteQuery, candidate: Candidate) -> float:
    """What it costs to answer there, the prompt being computed elsewhere."""
    worker, output_tokens = candidate.worker, query.output_tokens
    moved = query.prompt_tokens - matched_tokens(query, candidate)
    full = min(1.0, worker.kv_tokens / worker.kv_tokens_max) if worker.kv_tokens_max else 0.0
    slow = output_tokens * (DECODE_SLOWDOWN_MS * full + STREAM_MS * worker.streams)
    return MOVE_MS_PER_TOKEN * moved + kv_wait_ms(worker, moved + output_tokens, output_tokens) + slow


def _splits(query: RouteQuery, half: Candidate) -> bool:
    """Can such halves share this request?"""
    assert half.worker.half is not None
    return half.worker.half.several or (query.answers == 1 and not query.answers_prompt)


def _role(candidate: Candidate) -> Role:
    half = candidate.worker.half
    return half.role if half is not None else Role.BOTH


def _kind(candidate: Candidate) -> str:
    half = candidate.worker.half
    return half.kind if half is not None else ""
