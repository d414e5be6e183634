"""Adapter for SGLang, and for the embedded engine, which speaks as SGLang does.

`/ready` is the cheap probe (`/health` generates a token); `/server_info` tells the size of the KV cache,
`/v1/loads` how busy it is, as its load feed does unasked (workers/load_reports/load_feed.py). Cached tokens are reported with
`--enable-cache-report`.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress

import msgspec

from radix_cache.blocks import Tokens
from workers.adapter import WorkerCall, WorkerReport, WorkerUnreachable
from workers.adapters import tokenize_endpoint
from workers.adapters.http import NotThere
from workers.adapters.openai import OpenAIAdapter, raw
from workers.kv_events.source import EventSource, reachable
from workers.load_reports.engine_loads import EngineLoad, Loads, of_ranks
from workers.load_reports.load_feed import LoadSource
from workers.worker import Role


class KvEvents(msgspec.Struct):
    """`kv_events` of /server_info. Ports are those of rank 0; rank r has port + r. So too for its load feed."""

    endpoint_host: str = "*"
    endpoint_port_base: int | None = None
    replay_endpoint_port_base: int | None = None
    topic: str = ""
    block_size: int | None = None
    dp_size: int = 1
    load_endpoint_port_base: int | None = None
    load_topic: str = "load"


class ServerInfo(msgspec.Struct):
    """What is read of /server_info. `instance_id` is the embedded engine's: new with every start."""

    max_total_num_tokens: int | None = None
    chunked_prefill_size: int | None = None
    instance_id: str | None = None
    kv_events: KvEvents | None = None
    disaggregation_mode: str | None = None
    disaggregation_bootstrap_port: int | None = None
    dp_size: int | None = None


SLEEP_SECONDS_MAX = 120.0
"""Weights are copied to host memory, or back."""

RANKS_MAX = 1024
"""Of one worker: those beyond are not chosen, nor heard."""

_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE}


class SglangAdapter(OpenAIAdapter):
    """See WorkerAdapter."""

    isolates = True
    lowest_first = False
    chat_ids: str | None = "input_ids"
    streams_whole = True

    def body(self, call: WorkerCall) -> dict[str, msgspec.Raw]:
        fields = tokenize_endpoint.with_ids(super().body(call), call, self.chat_ids)
        fields["rid"] = raw(call.id)
        if call.cache_salt:
            fields["cache_salt"] = raw(call.cache_salt)
        if call.priority is not None:
            fields["priority"] = raw(call.priority if self.lowest_first else -call.priority)
        if call.rank is not None:
            fields["routed_dp_rank"] = raw(call.rank)
        return fields

    async def probe(self) -> WorkerReport:
        with suppress(NotThere):  # Older versions; whether it serves, its models say as well.
            await self.http.get_json("ready", None)
        info = await self._info()
        listed = await self.models()
        return WorkerReport(
            models=listed.names,
            contexts=listed.contexts,
            kv_tokens_max=info.max_total_num_tokens if (info.max_total_num_tokens or 0) > 0 else None,
            chunk_tokens=info.chunked_prefill_size if (info.chunked_prefill_size or 0) > 0 else None,
            instance=info.instance_id,
            events=tuple(_sources(info.kv_events, self.http.host)) if info.kv_events is not None else (),
            loads=tuple(_load_sources(info.kv_events, self.http.host)) if info.kv_events is not None else (),
            role=_ROLES.get(info.disaggregation_mode or "", Role.BOTH),
            handoff=(self.http.host, info.disaggregation_bootstrap_port),
            ranks=min(max(1, info.dp_size or 1), RANKS_MAX),
            load=await self._load(),
        )

    async def sleep(self) -> None:
        """Needs --enable-memory-saver, and that nothing runs. It does not say later that it sleeps."""
        await self.http.tell("release_memory_occupation", SLEEP_SECONDS_MAX)

    async def wake(self) -> None:
        await self.http.tell("resume_memory_occupation", SLEEP_SECONDS_MAX)

    async def tokenize(self, fields: Mapping[str, msgspec.Raw], seconds_max: float) -> Tokens | None:
        """See Tokenizes."""
        return await tokenize_endpoint.tokenize(self.http, fields, seconds_max)

    async def _info(self) -> ServerInfo:
        """Under its name, or its older one."""
        for path in ("server_info", "get_server_info"):
            with suppress(NotThere):
                told: ServerInfo = await self.http.get_json(path, ServerInfo)
                return told
        return ServerInfo()

    async def _load(self) -> EngineLoad | None:
        """SGLang before 0.5.23 does not say."""
        try:
            told: Loads = await self.http.get_json("v1/loads", Loads)
        except WorkerUnreachable:
            return None
        return of_ranks(told.loads)


class EmbeddedAdapter(SglangAdapter):
    """The embedded engine, which lets the lowest `priority` go first, as vLLM does."""

    lowest_first = True
    chat_ids = None


def _sources(events: KvEvents, host: str) -> Iterator[EventSource]:
    """One a rank."""
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


def _load_sources(events: KvEvents, host: str) -> Iterator[LoadSource]:
    """One a rank. Engines listen for it everywhere, also where they publish their KV events on one address."""
    if events.load_endpoint_port_base is None:
        return
    for rank in range(min(events.dp_size, RANKS_MAX)):
        at = reachable(f"tcp://*:{events.load_endpoint_port_base + rank}", host)
        yield LoadSource(endpoint=at, topic=events.load_topic)
