"""The adapter of kind `vllm`: OpenAI's API with `cache_salt`, and a cheap /health that fails if the engine is dead.

Cached tokens are reported with `--enable-prompt-tokens-details`. The size of the KV cache and the load are in
/metrics, which is long and therefore read only with every third probe.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from radix_cache.blocks import Tokens
from workers.adapter import FormPart, WorkerCall, WorkerFailed, WorkerReport, WorkerTarget
from workers.adapters import multipart, tokenize_endpoint
from workers.adapters.openai import OpenAIAdapter
from workers.kv_events.source import EventSource, reachable
from workers.load_reports.engine_loads import EngineLoad, load_in_vllm_metrics

INCLUDE_USAGE = "stream_include_usage"
"""The form field for `stream_options.include_usage`."""

PROBES_PER_METRICS = 3
"""/metrics is read with one probe of so many."""

SLEEP_SECONDS_MAX = 120.0
"""Longest time to fall asleep or wake up: weights are copied to host memory, or back."""


class VllmAdapter(OpenAIAdapter):
    """The WorkerAdapter of kind `vllm`."""

    isolates = True
    reports_running_usage = True
    streams_whole = True

    def __init__(self, target: WorkerTarget) -> None:
        super().__init__(target)
        self._kv_tokens_max: int | None = None
        self._ranks = 1
        self._load: EngineLoad | None = None
        self._probes = 0
        self._reports_sleep = True

    def body(self, call: WorkerCall) -> dict[str, object]:
        """Return the fields of the body, with vLLM's own."""
        fields = super().body(call)
        if call.prompt_ids is not None:
            fields = tokenize_endpoint.with_prompt_ids(fields, call)
        fields["request_id"] = call.id
        if call.cache_salt:
            fields["cache_salt"] = call.cache_salt
        if call.priority is not None:
            fields["priority"] = call.priority
        return fields

    def form(self, call: WorkerCall, parts: Iterable[FormPart]) -> list[FormPart]:
        """Return the parts of a form; for a stream they request usage."""
        found = super().form(call, parts)
        if not call.stream:
            return found
        asked = [part for part in found if part.field != INCLUDE_USAGE]
        return [*asked, multipart.text_part(INCLUDE_USAGE, "true")]

    def headers(self, call: WorkerCall) -> str:
        """Return the header that names the data-parallel rank."""
        return f"X-data-parallel-rank: {call.rank}\r\n" if call.rank is not None else ""

    async def probe(self) -> WorkerReport:
        """Check that the worker serves, and return what its paths report. Raises WorkerFailed.

        Each probe requests health, models, sources of KV events and sleep. KV size, ranks and load are those of the
        last read of /metrics, one with PROBES_PER_METRICS probes; slots and chunk size are not reported.
        """
        try:
            await self.http.get_json("health", None)
        except WorkerFailed:
            # After a restart the worker may have another cache size, and other paths.
            self._kv_tokens_max, self._reports_sleep = None, True
            raise
        if self._kv_tokens_max is None or self._probes % PROBES_PER_METRICS == 0:
            await self._read_metrics()
        self._probes += 1
        listed = await self.models()
        return WorkerReport(
            models=listed.names,
            parents=listed.parents,
            engine=listed.engine,
            context_lengths=listed.context_lengths,
            kv_tokens_max=self._kv_tokens_max,
            events=await self._events(),
            ranks=self._ranks,
            load=self._load,
            asleep=await self._asleep(),
        )

    async def sleep(self) -> None:
        """Make the engine sleep at level 1; it needs --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1."""
        await self.http.post_command("sleep?level=1", SLEEP_SECONDS_MAX)

    async def wake(self) -> None:
        """Wake the engine."""
        await self.http.post_command("wake_up", SLEEP_SECONDS_MAX)

    async def _asleep(self) -> bool:
        """Return whether the engine sleeps; a server without /is_sleeping gets only one request."""
        if not self._reports_sleep:
            return False
        try:
            state: SleepState = await self.http.get_json("is_sleeping", SleepState)
        except WorkerFailed as err:
            self._reports_sleep = err.timed_out
            return False
        return state.is_sleeping

    async def tokenize(self, fields: Mapping[str, msgspec.Raw], seconds_max: float) -> Tokens | None:
        """Return the tokens of a prompt; see SupportsTokenize."""
        return await tokenize_endpoint.tokenize(self.http, fields, seconds_max)

    async def _read_metrics(self) -> None:
        """Read KV size, ranks and load of all engines behind this server from /metrics; no load without metrics."""
        try:
            metrics = await self.http.get("metrics")
        except WorkerFailed:
            self._load = None
            return
        self._kv_tokens_max, self._ranks = kv_tokens_in_metrics(metrics), ranks_in_metrics(metrics)
        self._load = load_in_vllm_metrics(metrics, self._kv_tokens_max)

    async def _events(self) -> tuple[EventSource, ...]:
        """Return the source of KV events of each rank; none from servers that are older than 0.32."""
        try:
            ranks: dict[str, EventSourceInfo] = await self.http.get_json(
                "kv_event_sources", dict[str, EventSourceInfo]
            )
        except WorkerFailed:
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


class SleepState(msgspec.Struct):
    """The answer of /is_sleeping."""

    is_sleeping: bool


class EventSourceInfo(msgspec.Struct):
    """One rank in the answer of /kv_event_sources."""

    endpoint: str = ""
    replay_endpoint: str | None = None
    topic: str = ""


def kv_tokens_in_metrics(metrics: bytes) -> int | None:
    """Return the tokens that fit into the KV caches of all engines in vllm:cache_config_info; None without any."""
    tokens = 0
    for labels in re.findall(rb"^vllm:cache_config_info\{(.*)\}", metrics, re.M):
        sizes = dict(re.findall(rb'(\w+)="(\d+)"', labels))
        tokens += int(sizes.get(b"block_size", 0)) * int(sizes.get(b"num_gpu_blocks", 0))
    return tokens or None


def ranks_in_metrics(metrics: bytes) -> int:
    """Return the data-parallel ranks of one server: the engines of vllm:cache_config_info, if numbered from 0.

    Other numbers mean that further engines are behind other servers, so that the numbering of ranks is unknown; the
    result is then 1.
    """
    engines = re.findall(rb'^vllm:cache_config_info\{[^\n]*\bengine="(\d+)"', metrics, re.M)
    numbers = set(map(int, engines))
    return len(numbers) if numbers == set(range(len(numbers))) and numbers else 1
