"""How busy an engine says it is: SGLang's and the embedded engine's /v1/loads, vLLM's /metrics. Pure. SGLang's load
feed, which it tells by itself, is in load_feed.py.

It tells what a gateway cannot know: requests that came some other way. See WorkerLoad in gateway/fleet/loads.py.
"""

import re
from collections.abc import Iterable

import msgspec


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Of all data-parallel ranks. `streams`: requests that run or wait; `tokens_queued`: prompt tokens of those
    that wait, less what is cached; `kv_tokens`: that requests hold."""

    streams: int = 0
    tokens_queued: int = 0
    kv_tokens: int = 0

    def beyond(self, streams: int, tokens_queued: int, kv_tokens: int) -> "EngineLoad":
        """What of it is nobody's whose load that is."""
        return EngineLoad(
            streams=max(0, self.streams - streams),
            tokens_queued=max(0, self.tokens_queued - tokens_queued),
            kv_tokens=max(0, self.kv_tokens - kv_tokens),
        )

    def __add__(self, other: "EngineLoad") -> "EngineLoad":
        return EngineLoad(
            streams=self.streams + other.streams,
            tokens_queued=self.tokens_queued + other.tokens_queued,
            kv_tokens=self.kv_tokens + other.kv_tokens,
        )

    def least(self, other: "EngineLoad") -> "EngineLoad":
        """What both have."""
        return EngineLoad(
            streams=min(self.streams, other.streams),
            tokens_queued=min(self.tokens_queued, other.tokens_queued),
            kv_tokens=min(self.kv_tokens, other.kv_tokens),
        )


NO_LOAD = EngineLoad()


class SglangRankLoad(msgspec.Struct, frozen=True):
    """One rank in /v1/loads."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_waiting_uncached_tokens: int = 0
    num_used_tokens: int = 0


class Loads(msgspec.Struct, frozen=True):
    """/v1/loads."""

    loads: list[SglangRankLoad] = []


def of_ranks(ranks: Iterable[SglangRankLoad]) -> EngineLoad:
    streams = queued = used = 0
    for rank in ranks:
        streams += rank.num_running_reqs + rank.num_waiting_reqs
        queued += rank.num_waiting_uncached_tokens
        used += rank.num_used_tokens
    return EngineLoad(streams=streams, tokens_queued=queued, kv_tokens=used)


_GAUGE = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc)(?:\{[^\n]*\})? ([0-9.e+-]+)$",
    re.M,
)


def in_metrics(metrics: bytes, kv_tokens_max: int | None) -> EngineLoad | None:
    """Of vLLM's /metrics, of all engines behind it; None if they do not tell. Waiting prompts are counted, not
    measured: how long they are it does not say."""
    streams, shares, told = 0.0, [], False
    for name, value in _GAUGE.findall(metrics):
        told = True
        if name == b"kv_cache_usage_perc":
            shares.append(float(value))
        else:
            streams += float(value)
    if not told:
        return None
    share = sum(shares) / len(shares) if shares else 0.0
    return EngineLoad(streams=int(streams), kv_tokens=int(share * (kv_tokens_max or 0)))
