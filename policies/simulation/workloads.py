"""Generated traces: conversations, agents, retrieval, shared system prompts. The same seed gives the same trace.

A prompt is a sequence of segments, each with a name and a length; two prompts share the prefix of their equal
leading segments. Blocks are cut across segments and chained as everywhere:

    chat      [system of the tenant][question 1]                            turns come after a pause for reading
              [system of the tenant][question 1][answer 1][question 2]
    agents    [tools of the tenant][task][call 1][result 1]...              long, growing fast, quick turns
    rag       [system][document 17][document 3][document 99][question]      documents by popularity, in any order
    prompts   [one of many system prompts][question]                        an API: single requests
    mixed     all of these, tenant by tenant
    teams     [tools and system prompt of the team, 24k to 40k][task]...    fleets of agents
    giant     [one prompt of 32k that all requests share][question]
    stampede  [document]; now and then 64 requests with one new prefix of 16k within 0.4 s
    drift     [one of 40 prompts of 8k][question]                           what is popular changes each minute
    tiny      [60 to 400 tokens, nothing in common]
    classes   [voice, code or chat], and beside every second one [batch]: nothing in common

Tenants have shares by Zipf's law with exponent `skew`: 0 is even, 1.2 gives the first of 32 about a third.
"""

from array import array
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, islice
from math import exp, inf, log
from random import Random

from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from policies.service_class import BATCH
from policies.simulation.class_lengths import INTERACTIVE, short_batch
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest

Segment = tuple[str, int]
"""A name in place of a text, and the text's length in tokens."""

PROMPT_TOKENS_MAX = 120_000
DOCUMENTS = 2000
SYSTEM_PROMPTS = 64
TEAMS = 8
DRIFT_PROMPTS = 40
STAMPEDE_EVERY = 180
"""Of so many sessions one is a stampede."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadParameters:
    """The size of a generated workload: its requests, their rate, its tenants and their shares."""

    requests: int = 5000
    rate: float = 1.0
    """Sessions a second, of all tenants together."""
    tenants: int = 32
    skew: float = 1.0
    """Exponent of Zipf's law for the tenants' shares; 0: even."""
    seed: int = 0


def generated(kind: str, load: WorkloadParameters) -> list[TraceRequest]:
    """Return the first `load.requests` requests of a workload. Raises KeyError for one that is not in WORKLOADS."""
    of_kind = WORKLOADS[kind]
    random = Random(f"{kind} {load.seed}")
    shares = _zipf(load.tenants, load.skew)
    chosen: list[TraceRequest] = []
    begins = 0.0
    # The sessions under way by their next request; of equal times the earlier session goes first.
    running: list[tuple[float, int, TraceRequest, Turns]] = []

    def choose_until(before: float) -> None:
        while running and running[0][0] < before and len(chosen) < load.requests:
            _, session, request, turns = heappop(running)
            chosen.append(request)
            if (following := next(turns, None)) is not None:
                heappush(running, (following.at, session, following, turns))

    for session in range(load.requests):
        begins += random.expovariate(load.rate)
        tenant = bisect(shares, random.random())
        turns = iter(list(islice(of_kind(random, tenant, session, begins), load.requests)))
        if (first := next(turns, None)) is not None:
            heappush(running, (first.at, session, first, turns))
        choose_until(begins)
        if len(chosen) >= load.requests:
            break
    choose_until(inf)
    return chosen


def blocks_of(segments: Sequence[Segment]) -> "array[int]":
    """Return the chained ids of the blocks of a prompt, the last, partial one included."""
    ids = array("Q")
    content: list[str] = []
    filled = chained = 0
    for name, length in segments:
        offset = 0
        while offset < length:
            taken = min(length - offset, BLOCK_TOKENS - filled)
            content.append(f"{name}:{offset}+{taken}")
            offset += taken
            filled += taken
            if filled == BLOCK_TOKENS:
                chained = xxh3_64_intdigest(f"{chained} {content}".encode())
                ids.append(chained)
                content, filled = [], 0
    if content:
        ids.append(xxh3_64_intdigest(f"{chained} {content}".encode()))
    return ids


Turns = Iterator[TraceRequest]


def _chat(random: Random, tenant: int, session: int, at: float) -> Turns:
    segments: list[Segment] = [(f"chat system {tenant}", 400 + 137 * (tenant % 12))]
    for turn in range(_geometric(random, 5)):
        segments.append((f"chat {session} question {turn}", _tokens(random, 150, 1.2)))
        answer = _tokens(random, 280, 0.8)
        yield _request(at, tenant, f"chat {session}", segments, answer)
        segments.append((f"chat {session} answer {turn}", answer))
        if _length(segments) > PROMPT_TOKENS_MAX:
            return
        at += 0.03 * answer + random.expovariate(1 / 30)


def _agents(random: Random, tenant: int, session: int, at: float) -> Turns:
    segments: list[Segment] = [(f"tools {tenant}", 9000 + 500 * (tenant % 10))]
    segments.append((f"agent {session} task", _tokens(random, 1500, 1.0)))
    for turn in range(_geometric(random, 15)):
        call = _tokens(random, 150, 0.7)
        yield _request(at, tenant, f"agent {session}", segments, call)
        segments.append((f"agent {session} call {turn}", call))
        segments.append((f"agent {session} result {turn}", _tokens(random, 1200, 1.0)))
        if _length(segments) > PROMPT_TOKENS_MAX:
            return
        at += 0.03 * call + random.expovariate(1 / 6)


def _rag(random: Random, tenant: int, session: int, at: float) -> Turns:
    documents = [bisect(_POPULARITY, random.random()) for _ in range(random.randint(2, 5))]
    segments: list[Segment] = [(f"rag system {tenant}", 900)]
    # The same document has the same length in every prompt.
    segments += [(f"document {tenant % 4} {at_}", 600 + at_ * 7919 % 2400) for at_ in documents]
    segments.append((f"rag {session}", _tokens(random, 60, 0.6)))
    yield _request(at, tenant, "", segments, _tokens(random, 200, 0.6))


def _prompts(random: Random, tenant: int, session: int, at: float) -> Turns:
    prompt = (tenant * 7 + _geometric(random, 3)) % SYSTEM_PROMPTS
    segments = [
        (f"prompt {prompt}", 1500 + prompt * 2741 % 6000),
        (f"call {session}", _tokens(random, 400, 1.3)),
    ]
    yield _request(at, tenant, "", segments, _tokens(random, 120, 1.0))


def _mixed(random: Random, tenant: int, session: int, at: float) -> Turns:
    return (_chat, _agents, _rag, _prompts)[tenant % 4](random, tenant, session, at)


def _teams(random: Random, tenant: int, session: int, at: float) -> Turns:
    team = tenant % TEAMS
    segments: list[Segment] = [(f"team {team} tools", 24_576 + 2311 * team)]
    for turn in range(random.randint(4, 29)):
        segments.append((f"team session {session} result {turn}", random.randint(300, 6000)))
        if _length(segments) > PROMPT_TOKENS_MAX:
            return
        call = random.randint(40, 600)
        yield _request(at, tenant, f"team session {session}", segments, call)
        segments.append((f"team session {session} call {turn}", call))
        at += 0.012 * call + random.choice((0.4, 0.9, 2.5, 9.0))


def _giant(random: Random, tenant: int, session: int, at: float) -> Turns:
    segments = [("giant", 32_768), (f"giant question {session}", random.randint(600, 3000))]
    yield _request(at, tenant, "", segments, 150)


def _stampede(random: Random, tenant: int, session: int, at: float) -> Turns:
    if session % STAMPEDE_EVERY != STAMPEDE_EVERY // 2:
        document = (f"stampede document {session}", random.randint(500, 12_000))
        yield _request(at, tenant, "", [document], random.randint(50, 400))
        return
    for number, then in enumerate(sorted(at + 0.4 * random.random() for _ in range(64))):
        segments = [(f"stampede head {session}", 16_384), (f"stampede {session} question {number}", 502)]
        yield _request(then, tenant, "", segments, 200)


def _drift(random: Random, tenant: int, session: int, at: float) -> Turns:
    place = bisect(_DRIFT_POPULARITY, random.random())
    prompt = (place + 7 * int(at // 60)) % DRIFT_PROMPTS
    segments = [(f"drift prompt {prompt}", 8192), (f"drift question {session}", random.randint(100, 3000))]
    yield _request(at, tenant, "", segments, 120)


def _tiny(random: Random, tenant: int, session: int, at: float) -> Turns:
    question = (f"tiny {session}", random.randint(60, 400))
    yield _request(at, tenant, "", [question], random.randint(20, 100))


def _classes(random: Random, tenant: int, session: int, at: float) -> Turns:
    name = random.choice(tuple(INTERACTIVE))
    yield _of_class(at, tenant, session, name, INTERACTIVE[name](random))
    if session % 2:
        yield _of_class(at, tenant, session, BATCH.name, short_batch(random))


def _of_class(at: float, tenant: int, session: int, name: str, tokens: tuple[int, int]) -> TraceRequest:
    prompt_tokens, output_tokens = tokens
    request = _request(at, tenant, "", [(f"{name} {session}", prompt_tokens)], output_tokens)
    return replace(request, service_class=name)


WORKLOADS: dict[str, Callable[[Random, int, int, float], Turns]] = {
    "chat": _chat,
    "agents": _agents,
    "rag": _rag,
    "prompts": _prompts,
    "mixed": _mixed,
    "teams": _teams,
    "giant": _giant,
    "stampede": _stampede,
    "drift": _drift,
    "tiny": _tiny,
    "classes": _classes,
}


def _request(
    at: float, tenant: int, session: str, segments: Sequence[Segment], output_tokens: int
) -> TraceRequest:
    return TraceRequest(
        at=at,
        prompt_tokens=_length(segments),
        output_tokens=output_tokens,
        blocks=blocks_of(segments),
        tenant=f"tenant-{tenant:03}",
        session=session,
    )


def _length(segments: Sequence[Segment]) -> int:
    return sum(length for _, length in segments)


def _tokens(random: Random, median: float, sigma: float) -> int:
    """Return a log-normal length, as those of questions and answers are."""
    return max(1, min(32_000, round(exp(random.gauss(log(median), sigma)))))


def _geometric(random: Random, mean: float) -> int:
    """Return a geometric random number, at least 1."""
    count = 1
    while random.random() > 1 / mean:
        count += 1
    return count


def _zipf(count: int, exponent: float) -> list[float]:
    """Return cumulative shares without the last, so that a draw below 1 is always in range."""
    weights = [(place + 1) ** -exponent for place in range(count)]
    total = sum(weights)
    return [share / total for share in accumulate(weights)][:-1]


_POPULARITY = _zipf(DOCUMENTS, 0.9)
_DRIFT_POPULARITY = _zipf(DRIFT_PROMPTS, 1.2)
