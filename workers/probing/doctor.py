"""Finds the features that an engine offers a gateway in its replies. The caller sends the questions.

    replies --> kind_of --> diagnose --> Diagnosis: what was found, and each feature: yes, no, or unknown

A feature that the replies do not mention is unknown: a missing reply proves nothing. Completing the same long
prompt twice shows whether prefixes are cached.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from workers.launching import engine_flags as flags
from workers.probing.engine_replies import (
    FIRST_COMPLETION,
    PRIORITY_COMPLETION,
    REPEATED_COMPLETION,
    EngineReply,
    Replies,
    models_of,
    most_cached_tokens,
    server_info_of,
    status_of,
    usage_of,
    vllm_caches,
    whole_number,
)

BLOCK_SIZES = range(16, 65)


class FeatureState(StrEnum):
    """Whether a feature of an engine is on."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFeature:
    """One feature of an engine."""

    name: str
    state: FeatureState
    evidence: str
    """The evidence for the state."""
    consequence: str
    """What is lost without the feature."""
    flags: str = ""
    """Flags that turn the feature on."""
    advice: str = ""
    """How else to turn the feature on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found out about an engine. Values that it does not report are None."""

    kind: str
    version: str | None
    models: tuple[str, ...]
    block_size: int | None
    kv_tokens: int | None
    """Tokens that fit into the KV cache."""
    features: tuple[EngineFeature, ...]

    def in_state(self, state: FeatureState) -> list[EngineFeature]:
        """Return the features in this state."""
        return [feature for feature in self.features if feature.state is state]


def diagnose(replies: Replies, kind: str) -> Diagnosis:
    """Return the features of an engine, by its replies; `kind` is one of KINDS."""
    engine = _Examination(replies, kind)
    return Diagnosis(
        kind=kind,
        version=engine.version,
        models=models_of(replies),
        block_size=engine.block_size,
        kv_tokens=engine.kv_tokens,
        features=tuple(feature(engine) for feature in _EXAMINERS),
    )


class _Examination:
    """The replies of an engine, and values from them that several features need."""

    def __init__(self, replies: Replies, kind: str) -> None:
        self.replies = replies
        self.kind = kind
        self.info = server_info_of(replies)
        self.caches = list(vllm_caches(replies)) if kind == "vllm" else []

    @property
    def version(self) -> str | None:
        if self.kind == "vllm":
            answer = self.reply("version").json
            version = answer.get("version") if isinstance(answer, dict) else None
        else:
            version = self.info.get("version")
        return str(version) if version is not None else None

    @property
    def block_size(self) -> int | None:
        if self.kind == "vllm":
            return next(
                (size for cache in self.caches if (size := whole_number(cache.get("block_size")))), None
            )
        return whole_number(self.info.get("page_size"))

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that fit into the KV caches of all ranks together."""
        if self.kind != "vllm":
            return whole_number(self.info.get("max_total_num_tokens"))
        sizes = [whole_number(cache.get("num_gpu_blocks")) for cache in self.caches]
        if not sizes or None in sizes or self.block_size is None:
            return None
        return sum(size for size in sizes if size is not None) * self.block_size

    def reply(self, name: str) -> EngineReply:
        return self.replies.get(name, EngineReply(status=0))

    def flag(self, name: str) -> bool | None:
        """Return a flag of /server_info; None if it is not there."""
        value = self.info.get(name)
        return value if isinstance(value, bool) else None

    @property
    def caches_prefixes(self) -> tuple[FeatureState, str]:
        number = most_cached_tokens(self.replies)
        if number:
            return FeatureState.YES, f"{number} tokens of a repeated prompt were cached"
        if self.kind == "sglang" and (off := self.flag("disable_radix_cache")) is not None:
            return (
                FeatureState.NO if off else FeatureState.YES
            ), f"disable_radix_cache is {str(off).lower()}"
        answer = {cache.get("enable_prefix_caching") for cache in self.caches}
        if answer in ({"True"}, {"False"}):
            word = answer.pop()
            return (
                FeatureState.YES if word == "True" else FeatureState.NO
            ), f"enable_prefix_caching is {word}"
        if number == 0 and REPEATED_COMPLETION in self.replies and self._was_long_enough:
            return FeatureState.NO, "nothing of a repeated prompt was cached"
        return FeatureState.UNKNOWN, "the engine does not report it"

    @property
    def _was_long_enough(self) -> bool:
        """Whether the repeated prompt had a whole block before its last token."""
        tokens, size = usage_of(self.reply(REPEATED_COMPLETION)).get("prompt_tokens"), self.block_size
        return isinstance(tokens, int) and size is not None and tokens > size

    @property
    def reports_cached(self) -> tuple[FeatureState, str]:
        number = most_cached_tokens(self.replies)
        if number is not None:
            return FeatureState.YES, f"a completion reported {number} cached tokens"
        if self.kind == "sglang" and (on := self.flag("enable_cache_report")) is not None:
            return (FeatureState.YES if on else FeatureState.NO), f"enable_cache_report is {str(on).lower()}"
        again = self.reply(REPEATED_COMPLETION if REPEATED_COMPLETION in self.replies else FIRST_COMPLETION)
        if again.status != 200:
            return FeatureState.UNKNOWN, f"a completion got {status_of(again)}"
        if self.caches_prefixes[0] is FeatureState.YES and self._was_long_enough:
            return FeatureState.NO, "a repeated prompt came without cached tokens in its usage"
        return FeatureState.UNKNOWN, "no completion reported cached tokens, but perhaps nothing was cached"


def _cache_report(engine: _Examination) -> EngineFeature:
    state, evidence = engine.reports_cached
    return EngineFeature(
        name="cached-token report",
        state=state,
        evidence=evidence,
        consequence="routing does not learn that a cache has lost a prefix; no hit ratios",
        flags=_flags_of_kind(flags.CACHE_REPORT, engine),
    )


def _prefix_caching(engine: _Examination) -> EngineFeature:
    state, evidence = engine.caches_prefixes
    return EngineFeature(
        name="prefix caching",
        state=state,
        evidence=evidence,
        consequence="every prompt is computed whole, on whichever worker",
        flags=_flags_of_kind(flags.PREFIX_CACHING, engine),
        advice="remove --disable-radix-cache" if engine.kind == "sglang" else "",
    )


def _page_size(engine: _Examination) -> EngineFeature:
    size = engine.block_size
    return EngineFeature(
        name="page size 16-64",
        state=FeatureState.UNKNOWN
        if size is None
        else FeatureState.YES
        if size in BLOCK_SIZES
        else FeatureState.NO,
        evidence="the engine does not report it"
        if size is None
        else f"{size} token{'s' if size > 1 else ''}",
        consequence="small pages: an event and a hash for every few tokens; large ones: short prefixes not shared",
        flags=flags.shell_words(flags.page_size_flags(engine.kind)),
    )


def _kv_events(engine: _Examination) -> EngineFeature:
    state, evidence = {"vllm": _vllm_events}.get(engine.kind, _sglang_events)(engine)
    return EngineFeature(
        name="KV events",
        state=state,
        evidence=evidence,
        consequence="what is cached is predicted from requests; evictions are noticed only afterwards",
        flags=flags.shell_words(flags.kv_events_flags(engine.kind)),
        advice="start it with --kv-events" if engine.kind == "embedded" else "",
    )


def _sglang_events(engine: _Examination) -> tuple[FeatureState, str]:
    answer = engine.info.get("kv_events")
    if isinstance(answer, dict) and answer.get("publisher"):
        replay = "replay" if answer.get("replay_endpoint_port_base") else "no replay endpoint"
        return (
            FeatureState.YES,
            f"{answer['publisher']}, port {answer.get('endpoint_port_base', 'unknown')}, {replay}",
        )
    if (
        isinstance(answer, dict)
        or engine.kind == "embedded"
        or ("kv_events_config" in engine.info and not engine.info["kv_events_config"])
    ):
        return FeatureState.NO, "/server_info names no publisher"
    return FeatureState.UNKNOWN, "the engine does not report it"


def _vllm_events(engine: _Examination) -> tuple[FeatureState, str]:
    reply = engine.reply("kv_event_sources")
    answer = reply.json
    if not isinstance(answer, dict | list):
        return FeatureState.UNKNOWN, f"/kv_event_sources got {status_of(reply)}"
    sources = [
        one for one in (answer.values() if isinstance(answer, dict) else answer) if isinstance(one, dict)
    ]
    if not sources:
        return FeatureState.NO, "/kv_event_sources is empty"
    replay = "replay" if all(source.get("replay_endpoint") for source in sources) else "no replay endpoint"
    return FeatureState.YES, f"{sources[0].get('endpoint')}, {replay}"


def _loads(engine: _Examination) -> EngineFeature:
    state, evidence = _vllm_loads(engine) if engine.kind == "vllm" else _sglang_loads(engine)
    return EngineFeature(
        name="loads",
        state=state,
        evidence=evidence,
        consequence="the load is estimated from this gateway's own requests",
        advice={"sglang": "use SGLang 0.5.23 or newer", "vllm": "remove --disable-log-stats"}.get(
            engine.kind, ""
        ),
    )


def _sglang_loads(engine: _Examination) -> tuple[FeatureState, str]:
    reply = engine.reply("v1/loads")
    answer = reply.json
    ranks = answer.get("loads") if isinstance(answer, dict) else None
    if isinstance(ranks, list) and ranks and all(isinstance(rank, dict) for rank in ranks):
        running = sum(whole_number(rank.get("num_running_reqs")) or 0 for rank in ranks)
        waiting = sum(whole_number(rank.get("num_waiting_reqs")) or 0 for rank in ranks)
        events = engine.info.get("kv_events")
        port = events.get("load_endpoint_port_base") if isinstance(events, dict) else None
        feed = f", published on port {port}" if port is not None else ""
        return (
            FeatureState.YES,
            f"{running} running, {waiting} waiting, {len(ranks)} rank{'s' if len(ranks) > 1 else ''}{feed}",
        )
    missing = reply.status == 404 and engine.kind != "openai"
    return (FeatureState.NO if missing else FeatureState.UNKNOWN), f"/v1/loads got {status_of(reply)}"


def _vllm_loads(engine: _Examination) -> tuple[FeatureState, str]:
    reply = engine.reply("metrics")
    if reply.status != 200:
        return FeatureState.UNKNOWN, f"/metrics got {status_of(reply)}"
    there = all(f"vllm:num_requests_{state}" in reply.text for state in ("running", "waiting"))
    return (
        FeatureState.YES if there else FeatureState.NO
    ), f"/metrics has {'both' if there else 'no'} request gauges"


def _priority(engine: _Examination) -> EngineFeature:
    state, evidence = FeatureState.UNKNOWN, "the engine does not report it"
    if engine.kind == "sglang" and (flag := engine.flag("enable_priority_scheduling")) is not None:
        state, evidence = (
            (FeatureState.YES if flag else FeatureState.NO),
            f"enable_priority_scheduling is {str(flag).lower()}",
        )
    elif engine.kind == "embedded":
        state, evidence = FeatureState.YES, "the embedded engine always has it"
    elif engine.kind == "vllm" and (reply := engine.reply(PRIORITY_COMPLETION)).status:
        if reply.status == 400 and "priority scheduling is not enabled" in reply.text.lower():
            state, evidence = FeatureState.NO, "the engine refuses a request with a priority"
        elif reply.status == 200:
            evidence = "the engine accepts a priority, but does not report whether it uses it"
    return EngineFeature(
        name="priority scheduling",
        state=state,
        evidence=evidence,
        consequence="requests wait alike inside the engine, whatever their service class",
        flags=_flags_of_kind(flags.PRIORITY, engine),
        advice=_no_remedy(engine.kind),
    )


def _metrics(engine: _Examination) -> EngineFeature:
    reply = engine.reply("metrics")
    if reply.status == 200 and engine.kind in ("sglang", "vllm"):
        there = f"{engine.kind}:" in reply.text
        state = (
            FeatureState.YES
            if there
            else FeatureState.UNKNOWN
            if engine.kind == "sglang"
            else FeatureState.NO
        )
        evidence = f"/metrics has {'' if there else 'no '}series {engine.kind}:*"
    elif reply.status == 200:
        state, evidence = FeatureState.YES, "/metrics answers"
    else:
        state = FeatureState.NO if reply.status == 404 and engine.kind != "openai" else FeatureState.UNKNOWN
        evidence = f"/metrics got {status_of(reply)}"
    return EngineFeature(
        name="metrics",
        state=state,
        evidence=evidence,
        consequence="no metrics of the engine beside the gateway's",
        flags=_flags_of_kind(flags.METRICS, engine),
        advice="remove --disable-log-stats" if engine.kind == "vllm" else _no_remedy(engine.kind),
    )


_EXAMINERS: tuple[Callable[[_Examination], EngineFeature], ...] = (
    _cache_report,
    _prefix_caching,
    _page_size,
    _kv_events,
    _loads,
    _priority,
    _metrics,
)


def _flags_of_kind(wanted: flags.FlagsByKind, engine: _Examination) -> str:
    """Return the flags of the engine's kind as they are typed into a shell."""
    return flags.shell_words(wanted.get(engine.kind, ()))


def _no_remedy(kind: str) -> str:
    return "nothing can be done: the embedded engine is for trials" if kind == "embedded" else ""
