"""The adapters of kinds `sglang` and `embedded` (the embedded engine, which has the same API).

`/ready` is the cheap probe (`/health` generates a token); `/server_info` has the size of the KV cache, `/v1/loads`
the load, which the load feed also publishes (workers/load_reports/load_subscriber.py). Cached tokens are reported
with `--enable-cache-report`.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

import msgspec

from radix_cache.blocks import Tokens
from workers.adapter import WorkerCall, WorkerFailed, WorkerReport, WorkerTarget
from workers.adapters import tokenize_endpoint
from workers.adapters.http import PathNotFound
from workers.adapters.openai import OpenAIAdapter
from workers.kv_events.source import EventSource, reachable
from workers.load_reports.engine_loads import EngineLoad, SglangLoads, sum_of_ranks
from workers.load_reports.load_subscriber import LoadSource
from workers.worker import Role


class KvEventsInfo(msgspec.Struct):
    """The object `kv_events` of /server_info, with the ports of KV events and of the load feed.

    Ports are those of rank 0; rank r has port + r.
    """

    endpoint_host: str = "*"
    endpoint_port_base: int | None = None
    replay_endpoint_port_base: int | None = None
    topic: str = ""
    block_size: int | None = None
    dp_size: int = 1
    load_endpoint_port_base: int | None = None
    load_topic: str = "load"


class RankState(msgspec.Struct):
    """The part of the state of a data-parallel rank in /server_info that is read."""

    effective_max_running_requests_per_dp: int | None = None
    """The requests that it runs at a time: what memory allows."""


class ServerInfo(msgspec.Struct):
    """The part of /server_info that is read."""

    max_total_num_tokens: int | None = None
    chunked_prefill_size: int | None = None
    max_running_requests: int | None = None
    """Of all data-parallel ranks together, as configured."""
    internal_states: list[RankState] = []
    instance_id: str | None = None
    """An id that is new at every start; only the embedded engine has it."""
    kv_events: KvEventsInfo | None = None
    disaggregation_mode: str | None = None
    disaggregation_bootstrap_port: int | None = None
    dp_size: int | None = None


SLEEP_SECONDS_MAX = 120.0
"""Longest time to fall asleep or wake up: weights are copied to host memory, or back."""

RANKS_MAX = 1024
"""The most data-parallel ranks of one worker; further ones are ignored."""

_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE}


class SglangAdapter(OpenAIAdapter):
    """The WorkerAdapter of kind `sglang`."""

    isolates = True
    reports_running_usage = True
    lowest_first = False
    """Whether the engine serves the lowest `priority` first; SGLang serves the highest."""
    chat_ids_field: str | None = "input_ids"
    """The field for the tokens of a chat prompt; None: the engine accepts no tokens."""
    streams_whole = True
    lora_field: str | None = "lora_path"
    """The field for the name of a LoRA adapter, since SGLang ignores `model`; None: `model` is enough."""

    def __init__(self, target: WorkerTarget) -> None:
        super().__init__(target)
        self._loras: Collection[str] = ()

    def body(self, call: WorkerCall) -> dict[str, object]:
        """Return the fields of the body, with SGLang's own."""
        fields = super().body(call)
        if call.prompt_ids is not None:
            fields = tokenize_endpoint.with_prompt_ids(fields, call, self.chat_ids_field)
        if self.lora_field is not None and call.model in self._loras:
            fields[self.lora_field] = call.model
        fields["rid"] = call.id
        if call.cache_salt:
            fields["cache_salt"] = call.cache_salt
        if call.priority is not None:
            fields["priority"] = call.priority if self.lowest_first else -call.priority
        if call.rank is not None:
            fields["routed_dp_rank"] = call.rank
        return fields

    async def probe(self) -> WorkerReport:
        """Check that the worker serves, and return what /v1/models and /server_info report. Raises WorkerFailed."""
        with suppress(PathNotFound):  # Older versions lack /ready; the list of models shows the same.
            await self.http.get_json("ready", None)
        info = await self._info()
        listed = await self.models()
        self._loras = listed.parents.keys()
        return WorkerReport(
            models=listed.names,
            parents=listed.parents,
            engine=listed.engine,
            context_lengths=listed.context_lengths,
            kv_tokens_max=info.max_total_num_tokens if (info.max_total_num_tokens or 0) > 0 else None,
            chunk_tokens=info.chunked_prefill_size if (info.chunked_prefill_size or 0) > 0 else None,
            slots=_slots(info),
            instance_id=info.instance_id,
            events=tuple(_sources(info.kv_events, self.http.host)) if info.kv_events is not None else (),
            loads=tuple(_load_sources(info.kv_events, self.http.host)) if info.kv_events is not None else (),
            role=_ROLES.get(info.disaggregation_mode or "", Role.BOTH),
            bootstrap_address=(self.http.host, info.disaggregation_bootstrap_port),
            ranks=min(max(1, info.dp_size or 1), RANKS_MAX),
            load=await self._load(),
        )

    async def sleep(self) -> None:
        """Make the engine release its memory.

        The engine needs --enable-memory-saver and no running requests. It does not report later that it sleeps.
        """
        await self.http.post_command("release_memory_occupation", SLEEP_SECONDS_MAX)

    async def wake(self) -> None:
        """Make the engine take its memory back."""
        await self.http.post_command("resume_memory_occupation", SLEEP_SECONDS_MAX)

    async def tokenize(self, fields: Mapping[str, msgspec.Raw], seconds_max: float) -> Tokens | None:
        """Return the tokens of a prompt; see SupportsTokenize."""
        return await tokenize_endpoint.tokenize(self.http, fields, seconds_max)

    async def _info(self) -> ServerInfo:
        """Return /server_info, which older versions call /get_server_info; empty if there is neither."""
        for path in ("server_info", "get_server_info"):
            with suppress(PathNotFound):
                info: ServerInfo = await self.http.get_json(path, ServerInfo)
                return info
        return ServerInfo()

    async def _load(self) -> EngineLoad | None:
        """Return the load; None from SGLang before 0.5.23."""
        try:
            loads: SglangLoads = await self.http.get_json("v1/loads", SglangLoads)
        except WorkerFailed:
            return None
        return sum_of_ranks(loads.loads)


class EmbeddedAdapter(SglangAdapter):
    """The WorkerAdapter of kind `embedded`, which serves the lowest `priority` first, as vLLM does."""

    reports_running_usage = False
    lowest_first = True
    chat_ids_field = None
    lora_field = None


def _slots(info: ServerInfo) -> int | None:
    """Return how many requests all ranks run at a time."""
    of_rank = info.internal_states[0].effective_max_running_requests_per_dp if info.internal_states else None
    slots = info.max_running_requests if of_rank is None else of_rank * max(1, info.dp_size or 1)
    return slots if slots is not None and slots > 0 else None


def _sources(events: KvEventsInfo, host: str) -> Iterator[EventSource]:
    """Yield the source of KV events of each rank."""
    if events.endpoint_port_base is None:
        return
    at = f"tcp://{events.endpoint_host or '*'}"
    for rank in range(min(events.dp_size, RANKS_MAX)):
        replay = events.replay_endpoint_port_base
        yield EventSource(
            endpoint=reachable(f"{at}:{events.endpoint_port_base + rank}", host),
            replay=reachable(f"{at}:{replay + rank}", host) if replay is not None else None,
            topic=events.topic,
            page_size=events.block_size,
        )


def _load_sources(events: KvEventsInfo, host: str) -> Iterator[LoadSource]:
    """Yield the source of load reports of each rank.

    Engines publish them on all addresses, even if they publish their KV events on one.
    """
    if events.load_endpoint_port_base is None:
        return
    for rank in range(min(events.dp_size, RANKS_MAX)):
        at = reachable(f"tcp://*:{events.load_endpoint_port_base + rank}", host)
        yield LoadSource(endpoint=at, topic=events.load_topic)
