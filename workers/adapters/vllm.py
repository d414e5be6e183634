"""Adapter for vLLM: OpenAI's API with `cache_salt`, and a cheap /health that fails when the engine has died.

Cached tokens are reported with `--enable-prompt-tokens-details`. The size of the KV cache and the load stand in
/metrics, which is long: it is read with every third probe.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from radix_cache.blocks import Tokens
from workers.adapter import Part, WorkerCall, WorkerReport, WorkerTarget, WorkerUnreachable
from workers.adapters import multipart, tokenize_endpoint
from workers.adapters.openai import OpenAIAdapter, raw
from workers.kv_events.source import EventSource, reachable
from workers.load_reports.engine_loads import EngineLoad, in_metrics

INCLUDE_USAGE = "stream_include_usage"
"""`stream_options.include_usage` of a form."""

PROBES_A_LOAD = 3
SLEEP_SECONDS_MAX = 120.0
"""Weights are copied to host memory, or back."""


class VllmAdapter(OpenAIAdapter):
    """See WorkerAdapter."""

    isolates = True
    streams_whole = True

    def __init__(self, target: WorkerTarget) -> None:
        super().__init__(target)
        self._kv_tokens_max: int | None = None
        self._ranks = 1
        self._load: EngineLoad | None = None
        self._probes = 0
        self._tells_sleep = True

    def body(self, call: WorkerCall) -> dict[str, msgspec.Raw]:
        fields = tokenize_endpoint.with_ids(super().body(call), call)
        fields["request_id"] = raw(call.id)
        if call.cache_salt:
            fields["cache_salt"] = raw(call.cache_salt)
        if call.priority is not None:
            fields["priority"] = raw(call.priority)
        return fields

    def form(self, call: WorkerCall, parts: Iterable[Part]) -> list[Part]:
        found = super().form(call, parts)
        if not call.stream:
            return found
        asked = [part for part in found if part.field != INCLUDE_USAGE]
        return [*asked, multipart.text(INCLUDE_USAGE, "true")]

    def headers(self, call: WorkerCall) -> str:
        return f"X-data-parallel-rank: {call.rank}\r\n" if call.rank is not None else ""

    async def probe(self) -> WorkerReport:
        try:
            await self.http.get_json("health", None)
        except WorkerUnreachable:
            # Whoever comes back may have another size, and other routes.
            self._kv_tokens_max, self._tells_sleep = None, True
            raise
        if self._kv_tokens_max is None or self._probes % PROBES_A_LOAD == 0:
            await self._look_at_metrics()
        self._probes += 1
        listed = await self.models()
        return WorkerReport(
            models=listed.names,
            contexts=listed.contexts,
            kv_tokens_max=self._kv_tokens_max,
            events=await self._events(),
            ranks=self._ranks,
            load=self._load,
            asleep=await self._asleep(),
        )

    async def sleep(self) -> None:
        """Needs --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1."""
        await self.http.tell("sleep?level=1", SLEEP_SECONDS_MAX)

    async def wake(self) -> None:
        await self.http.tell("wake_up", SLEEP_SECONDS_MAX)

    async def _asleep(self) -> bool:
        """Most servers do not have this, and are asked once."""
        if not self._tells_sleep:
            return False
        try:
            told: Sleep = await self.http.get_json("is_sleeping", Sleep)
        except WorkerUnreachable as err:
            self._tells_sleep = err.timed_out
            return False
        return told.is_sleeping

    async def tokenize(self, fields: Mapping[str, msgspec.Raw], seconds_max: float) -> Tokens | None:
        """See Tokenizes."""
        return await tokenize_endpoint.tokenize(self.http, fields, seconds_max)

    async def _look_at_metrics(self) -> None:
        """Of all engines behind this server; None where metrics are not to be had."""
        try:
            metrics = await self.http.get("metrics")
        except WorkerUnreachable:
            self._load = None
            return
        self._kv_tokens_max, self._ranks = kv_tokens_in(metrics), ranks_in(metrics)
        self._load = in_metrics(metrics, self._kv_tokens_max)

    async def _events(self) -> tuple[EventSource, ...]:
        """By rank. Servers that are older than 0.32 do not say."""
        try:
            ranks: dict[str, EventRank] = await self.http.get_json("kv_event_sources", dict[str, EventRank])
        except WorkerUnreachable:
            return ()
        return tuple(
            EventSource(
                endpoint=reachable(rank.endpoint, self.http.host),
                replay=reachable(rank.replay_endpoint, self.http.host) if rank.replay_endpoint else None,
                topic=rank.topic,
            )
            for _, rank in sorted(ranks.items(), key=lambda named: (len(named[0]), named[0]))
            if rank.endpoint
        )


class Sleep(msgspec.Struct):
    """/is_sleeping."""

    is_sleeping: bool


class EventRank(msgspec.Struct):
    """One rank of /kv_event_sources."""

    endpoint: str = ""
    replay_endpoint: str | None = None
    topic: str = ""


def kv_tokens_in(metrics: bytes) -> int | None:
    """Tokens that fit into the KV caches that vllm:cache_config_info tells of, one an engine; None if none does."""
    tokens = 0
    for labels in re.findall(rb"^vllm:cache_config_info\{(.*)\}", metrics, re.M):
        told = dict(re.findall(rb'(\w+)="(\d+)"', labels))
        tokens += int(told.get(b"block_size", 0)) * int(told.get(b"num_gpu_blocks", 0))
    return tokens or None


def ranks_in(metrics: bytes) -> int:
    """Data-parallel ranks that one server has: the engines of vllm:cache_config_info, if they are numbered from 0.

    Where they are not, others of them stand behind other servers, and how ranks are counted here is not told.
    """
    engines = re.findall(rb'^vllm:cache_config_info\{[^\n]*\bengine="(\d+)"', metrics, re.M)
    numbers = set(map(int, engines))
    return len(numbers) if numbers == set(range(len(numbers))) and numbers else 1
