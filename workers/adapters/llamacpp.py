"""The adapter of kind `llamacpp`, for llama-server of llama.cpp."""

import re

import msgspec

from workers.adapters.metered import EngineSize, MeteredAdapter


class GenerationSettings(msgspec.Struct):
    """The object `default_generation_settings` of llama.cpp's /props."""

    n_ctx: int | None = None


class ServerProperties(msgspec.Struct):
    """The answer of llama.cpp's /props."""

    default_generation_settings: GenerationSettings = msgspec.field(default_factory=GenerationSettings)
    total_slots: int | None = None


class LlamaCppAdapter(MeteredAdapter):
    """The WorkerAdapter of kind `llamacpp`: llama-server of llama.cpp."""

    gauges = re.compile(rb"^llamacpp:requests_(?:processing|deferred)(?:\{[^\n]*\})? ([0-9.e+-]+)$", re.M)

    async def size(self) -> EngineSize:
        """Return the context of one slot, and the number of slots."""
        properties: ServerProperties = await self.http.get_json("props", ServerProperties)
        return EngineSize(properties.default_generation_settings.n_ctx, properties.total_slots)
