"""Adapter for vLLM: OpenAI's API with `cache_salt`, and a cheap /health that fails when the engine has died.

Cached tokens are reported with `--enable-prompt-tokens-details`.
"""

import msgspec

from workers.adapter import WorkerCall, WorkerReport
from workers.adapters.openai import OpenAIAdapter, raw


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
        return WorkerReport(models=await self.models())
