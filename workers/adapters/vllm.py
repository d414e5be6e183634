"""Adapter for vLLM: OpenAI's API with `cache_salt`, and a cheap /health that fails when the engine has died.

Cached tokens are reported with `--enable-prompt-tokens-details`.
"""

import msgspec

from workers.adapter import WorkerCall, WorkerReport, WorkerUnreachable
from workers.adapters.openai import OpenAIAdapter, raw
from workers.kv_events.source import EventSource, reachable


class VllmAdapter(OpenAIAdapter):
    """See WorkerAdapter."""

    isolates = True

    def body(self, call: WorkerCall) -> dict[str, msgspec.Raw]:
        fields = super().body(call)
        fields["request_id"] = raw(call.id)
        if call.cache_salt:
            fields["cache_salt"] = raw(call.cache_salt)
        return fields

    async def probe(self) -> WorkerReport:
        await self.http.get_json("health", None)
        return WorkerReport(models=await self.models(), events=await self._events())

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
            for _, rank in sorted(ranks.items())
            if rank.endpoint
        )


class EventRank(msgspec.Struct):
    """One rank of /kv_event_sources."""

    endpoint: str = ""
    replay_endpoint: str | None = None
    topic: str = ""
