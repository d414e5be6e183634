"""What an engine offers a gateway, judged by what it answered. Pure: somebody else has asked.

    replies --> kind_of --> diagnose --> Diagnosis: what was found, and each feature: yes, no, or unknown

Where an engine does not tell, it is unknown: nothing is concluded from silence. An engine that was asked the same
long prompt twice has told something, though.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from workers.launching import engine_flags as flags
from workers.probing.engine_replies import (
    AGAIN,
    FIRST,
    PRIORITY,
    Replies,
    Reply,
    cached_tokens,
    models_of,
    server_info_of,
    status_of,
    usage_of,
    vllm_caches,
    whole_number,
)

BLOCK_SIZES = range(16, 65)


class On(StrEnum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """`seen`: what says so. `without`: what is lost. `add`: flags that turn it on; `do`: what else helps."""

    name: str
    on: On
    seen: str
    without: str
    add: str = ""
    do: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """None: the engine does not tell. `kv_tokens`: how many fit into the KV cache."""

    kind: str
    version: str | None
    models: tuple[str, ...]
    block_size: int | None
    kv_tokens: int | None
    features: tuple[Feature, ...]

    def those(self, on: On) -> list[Feature]:
        return [feature for feature in self.features if feature.on is on]


def diagnose(replies: Replies, kind: str) -> Diagnosis:
    """`kind`: one of KINDS."""
    patient = _Patient(replies, kind)
    return Diagnosis(
        kind=kind,
        version=patient.version,
        models=models_of(replies),
        block_size=patient.block_size,
        kv_tokens=patient.kv_tokens,
        features=tuple(feature(patient) for feature in _FEATURES),
    )


class _Patient:
    """The replies, and what several features look at."""

    def __init__(self, replies: Replies, kind: str) -> None:
        self.replies = replies
        self.kind = kind
        self.info = server_info_of(replies)
        self.caches = list(vllm_caches(replies)) if kind == "vllm" else []

    @property
    def version(self) -> str | None:
        if self.kind == "vllm":
            told = self.reply("version").json
            version = told.get("version") if isinstance(told, dict) else None
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
        """Of all ranks together."""
        if self.kind != "vllm":
            return whole_number(self.info.get("max_total_num_tokens"))
        sizes = [whole_number(cache.get("num_gpu_blocks")) for cache in self.caches]
        if not sizes or None in sizes or self.block_size is None:
            return None
        return sum(size for size in sizes if size is not None) * self.block_size

    def reply(self, name: str) -> Reply:
        return self.replies.get(name, Reply(status=0))

    def says(self, name: str) -> bool | None:
        """A flag of /server_info."""
        value = self.info.get(name)
        return value if isinstance(value, bool) else None

    @property
    def caches_prefixes(self) -> tuple[On, str]:
        number = cached_tokens(self.replies)
        if number:
            return On.YES, f"{number} tokens of a repeated prompt were cached"
        if self.kind == "sglang" and (off := self.says("disable_radix_cache")) is not None:
            return (On.NO if off else On.YES), f"disable_radix_cache is {str(off).lower()}"
        told = {cache.get("enable_prefix_caching") for cache in self.caches}
        if told in ({"True"}, {"False"}):
            word = told.pop()
            return (On.YES if word == "True" else On.NO), f"enable_prefix_caching is {word}"
        if number == 0 and AGAIN in self.replies and self._was_long_enough:
            return On.NO, "of a prompt that was sent twice nothing was cached"
        return On.UNKNOWN, "it does not tell"

    @property
    def _was_long_enough(self) -> bool:
        """Had the repeated prompt a whole block before its last token?"""
        tokens, size = usage_of(self.reply(AGAIN)).get("prompt_tokens"), self.block_size
        return isinstance(tokens, int) and size is not None and tokens > size

    @property
    def reports_cached(self) -> tuple[On, str]:
        number = cached_tokens(self.replies)
        if number is not None:
            return On.YES, f"usage says so: {number} cached"
        if self.kind == "sglang" and (on := self.says("enable_cache_report")) is not None:
            return (On.YES if on else On.NO), f"enable_cache_report is {str(on).lower()}"
        again = self.reply(AGAIN if AGAIN in self.replies else FIRST)
        if again.status != 200:
            return On.UNKNOWN, f"a completion got {status_of(again)}"
        if self.caches_prefixes[0] is On.YES and self._was_long_enough:
            return On.NO, "a repeated prompt came without cached tokens in its usage"
        return On.UNKNOWN, "no number came, but perhaps nothing was cached"


def _cache_report(patient: _Patient) -> Feature:
    on, seen = patient.reports_cached
    return Feature(
        name="cached-token report",
        on=on,
        seen=seen,
        without="routing never learns that a cache has lost a prefix; no hit ratios",
        add=_typed(flags.CACHE_REPORT, patient),
    )


def _prefix_caching(patient: _Patient) -> Feature:
    on, seen = patient.caches_prefixes
    return Feature(
        name="prefix caching",
        on=on,
        seen=seen,
        without="every prompt is computed whole, wherever it goes",
        add=_typed(flags.PREFIX_CACHING, patient),
        do="take away --disable-radix-cache" if patient.kind == "sglang" else "",
    )


def _page_size(patient: _Patient) -> Feature:
    size = patient.block_size
    return Feature(
        name="page size 16-64",
        on=On.UNKNOWN if size is None else On.YES if size in BLOCK_SIZES else On.NO,
        seen="it does not tell" if size is None else f"{size} token{'s' if size > 1 else ''}",
        without="small pages: an event and a hash for every few tokens; large ones: short prefixes are not shared",
        add=flags.in_words(flags.page_size(patient.kind)),
    )


def _kv_events(patient: _Patient) -> Feature:
    on, seen = {"vllm": _vllm_events}.get(patient.kind, _sglang_events)(patient)
    return Feature(
        name="KV events",
        on=on,
        seen=seen,
        without="what is cached is predicted from requests; evictions show only afterwards",
        add=flags.in_words(flags.kv_events(patient.kind)),
        do="start it with --kv-events" if patient.kind == "embedded" else "",
    )


def _sglang_events(patient: _Patient) -> tuple[On, str]:
    told = patient.info.get("kv_events")
    if isinstance(told, dict) and told.get("publisher"):
        replay = "replay" if told.get("replay_endpoint_port_base") else "no replay endpoint"
        return On.YES, f"{told['publisher']}, port {told.get('endpoint_port_base', 'unknown')}, {replay}"
    if (
        isinstance(told, dict)
        or patient.kind == "embedded"
        or ("kv_events_config" in patient.info and not patient.info["kv_events_config"])
    ):
        return On.NO, "/server_info names no publisher"
    return On.UNKNOWN, "it does not tell"


def _vllm_events(patient: _Patient) -> tuple[On, str]:
    reply = patient.reply("kv_event_sources")
    told = reply.json
    if not isinstance(told, dict | list):
        return On.UNKNOWN, f"/kv_event_sources got {status_of(reply)}"
    sources = [one for one in (told.values() if isinstance(told, dict) else told) if isinstance(one, dict)]
    if not sources:
        return On.NO, "/kv_event_sources is empty"
    replay = "replay" if all(source.get("replay_endpoint") for source in sources) else "no replay endpoint"
    return On.YES, f"{sources[0].get('endpoint')}, {replay}"


def _loads(patient: _Patient) -> Feature:
    on, seen = _vllm_loads(patient) if patient.kind == "vllm" else _sglang_loads(patient)
    return Feature(
        name="loads",
        on=on,
        seen=seen,
        without="how busy it is, is guessed from this gateway's own requests",
        do={"sglang": "use SGLang 0.5.23 or newer", "vllm": "take away --disable-log-stats"}.get(
            patient.kind, ""
        ),
    )


def _sglang_loads(patient: _Patient) -> tuple[On, str]:
    reply = patient.reply("v1/loads")
    told = reply.json
    ranks = told.get("loads") if isinstance(told, dict) else None
    if isinstance(ranks, list) and ranks and all(isinstance(rank, dict) for rank in ranks):
        running = sum(whole_number(rank.get("num_running_reqs")) or 0 for rank in ranks)
        waiting = sum(whole_number(rank.get("num_waiting_reqs")) or 0 for rank in ranks)
        events = patient.info.get("kv_events")
        port = events.get("load_endpoint_port_base") if isinstance(events, dict) else None
        feed = f", published on port {port}" if port is not None else ""
        return (
            On.YES,
            f"{running} running, {waiting} waiting, {len(ranks)} rank{'s' if len(ranks) > 1 else ''}{feed}",
        )
    missing = reply.status == 404 and patient.kind != "openai"
    return (On.NO if missing else On.UNKNOWN), f"/v1/loads got {status_of(reply)}"


def _vllm_loads(patient: _Patient) -> tuple[On, str]:
    reply = patient.reply("metrics")
    if reply.status != 200:
        return On.UNKNOWN, f"/metrics got {status_of(reply)}"
    there = all(f"vllm:num_requests_{state}" in reply.text for state in ("running", "waiting"))
    return (On.YES if there else On.NO), f"/metrics has {'both' if there else 'no'} request gauges"


def _priority(patient: _Patient) -> Feature:
    on, seen = On.UNKNOWN, "it does not tell"
    if patient.kind == "sglang" and (flag := patient.says("enable_priority_scheduling")) is not None:
        on, seen = (On.YES if flag else On.NO), f"enable_priority_scheduling is {str(flag).lower()}"
    elif patient.kind == "embedded":
        on, seen = On.YES, "the embedded engine goes by it"
    elif patient.kind == "vllm" and (reply := patient.reply(PRIORITY)).status:
        if reply.status == 400 and "priority scheduling is not enabled" in reply.text.lower():
            on, seen = On.NO, "it refuses a priority: scheduling by it is not enabled"
        elif reply.status == 200:
            seen = "it takes a priority, and does not tell whether it heeds it"
    return Feature(
        name="priority scheduling",
        on=on,
        seen=seen,
        without="inside the engine all wait alike, whatever their class",
        add=_typed(flags.PRIORITY, patient),
        do=_nothing_to_do(patient.kind),
    )


def _metrics(patient: _Patient) -> Feature:
    reply = patient.reply("metrics")
    if reply.status == 200 and patient.kind in ("sglang", "vllm"):
        there = f"{patient.kind}:" in reply.text
        on = On.YES if there else On.UNKNOWN if patient.kind == "sglang" else On.NO
        seen = f"/metrics has {'' if there else 'no '}series {patient.kind}:*"
    elif reply.status == 200:
        on, seen = On.YES, "/metrics answers"
    else:
        on = On.NO if reply.status == 404 and patient.kind != "openai" else On.UNKNOWN
        seen = f"/metrics got {status_of(reply)}"
    return Feature(
        name="metrics",
        on=on,
        seen=seen,
        without="no figures of the engine's own beside the gateway's",
        add=_typed(flags.METRICS, patient),
        do="take away --disable-log-stats" if patient.kind == "vllm" else _nothing_to_do(patient.kind),
    )


_FEATURES: tuple[Callable[[_Patient], Feature], ...] = (
    _cache_report,
    _prefix_caching,
    _page_size,
    _kv_events,
    _loads,
    _priority,
    _metrics,
)


def _typed(wanted: flags.Flags, patient: _Patient) -> str:
    """As they are typed."""
    return flags.in_words(wanted.get(patient.kind, ()))


def _nothing_to_do(kind: str) -> str:
    return "nothing: this engine is for trying things out" if kind == "embedded" else ""
