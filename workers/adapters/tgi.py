"""The adapter of kind `tgi`, for Hugging Face's Text Generation Inference."""

import re

import msgspec

from workers.adapters.metered import EngineSize, MeteredAdapter


class RouterInfo(msgspec.Struct):
    """The answer of TGI's /info."""

    max_total_tokens: int | None = None


class TgiAdapter(MeteredAdapter):
    """The WorkerAdapter of kind `tgi`: Hugging Face's Text Generation Inference."""

    gauges = re.compile(rb"^tgi_(?:queue_size|batch_current_size)(?:\{[^\n]*\})? ([0-9.e+-]+)$", re.M)

    async def size(self) -> EngineSize:
        """Return the tokens that a prompt and its answer may have."""
        info: RouterInfo = await self.http.get_json("info", RouterInfo)
        return EngineSize(info.max_total_tokens)
