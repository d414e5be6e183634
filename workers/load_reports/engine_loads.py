"""The load that an engine reports on request: /v1/loads of SGLang and the embedded engine, /metrics of others.

These are pure functions of an answer; the load feed that SGLang publishes is in load_subscriber.py. A reported load
includes requests that did not come through this gateway. See gateway/fleet/loads.py.
"""

import re
from collections.abc import Iterable

import msgspec


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The load of an engine, over all of its data-parallel ranks."""

    streams: int = 0
    """Running and waiting requests."""
    tokens_queued: int = 0
    """Uncached prompt tokens of the requests that wait."""
    kv_tokens: int = 0
    """Tokens in the KV memory of requests."""

    def excess_over(self, streams: int, tokens_queued: int, kv_tokens: int) -> "EngineLoad":
        """Return the part of the load that exceeds this one, and so belongs to other sources of requests."""
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

    def minimum(self, other: "EngineLoad") -> "EngineLoad":
        """Return the smaller of two loads, value by value."""
        return EngineLoad(
            streams=min(self.streams, other.streams),
            tokens_queued=min(self.tokens_queued, other.tokens_queued),
            kv_tokens=min(self.kv_tokens, other.kv_tokens),
        )


NO_LOAD = EngineLoad()


class SglangRankLoad(msgspec.Struct, frozen=True):
    """One data-parallel rank in the answer of /v1/loads."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_waiting_uncached_tokens: int = 0
    num_used_tokens: int = 0


class SglangLoads(msgspec.Struct, frozen=True):
    """The answer of /v1/loads."""

    loads: list[SglangRankLoad] = []


def sum_of_ranks(ranks: Iterable[SglangRankLoad]) -> EngineLoad:
    """Return the load of an engine with these ranks."""
    streams = queued = used = 0
    for rank in ranks:
        streams += rank.num_running_reqs + rank.num_waiting_reqs
        queued += rank.num_waiting_uncached_tokens
        used += rank.num_used_tokens
    return EngineLoad(streams=streams, tokens_queued=queued, kv_tokens=used)


_VLLM_GAUGE = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc)(?:\{[^\n]*\})? ([0-9.e+-]+)$",
    re.M,
)


def load_in_gauges(metrics: bytes, gauges: re.Pattern[bytes]) -> EngineLoad | None:
    """Return the load as the sum of gauges that count requests; None if the metrics lack them.

    `gauges`: matches the line of each gauge, with its value as the group.
    """
    values = [float(value) for value in gauges.findall(metrics)]
    return EngineLoad(streams=int(sum(values))) if values else None


def load_in_vllm_metrics(metrics: bytes, kv_tokens_max: int | None) -> EngineLoad | None:
    """Return the load in vLLM's /metrics, over all engines behind the server; None if the metrics lack it.

    Waiting prompts count as streams only, since vLLM does not report their length.
    """
    streams, shares, found = 0.0, [], False
    for name, value in _VLLM_GAUGE.findall(metrics):
        found = True
        if name == b"kv_cache_usage_perc":
            shares.append(float(value))
        else:
            streams += float(value)
    if not found:
        return None
    share = sum(shares) / len(shares) if shares else 0.0
    return EngineLoad(streams=int(streams), kv_tokens=int(share * (kv_tokens_max or 0)))
