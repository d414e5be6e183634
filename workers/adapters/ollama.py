"""The adapter of kind `ollama`: OpenAI's API, and the context of each model that is loaded.

Ollama truncates a prompt that is too long instead of refusing it. The gateway reads the context of loaded models,
and refuses such a prompt earlier. Ollama reports no load and no cached tokens.
"""

import msgspec

from workers.adapter import WorkerFailed, WorkerReport
from workers.adapters.openai import OpenAIAdapter


class LoadedModelEntry(msgspec.Struct):
    """One model in the answer of /api/ps."""

    name: str
    context_length: int | None = None


class LoadedModels(msgspec.Struct):
    """The answer of /api/ps: the models in memory."""

    models: list[LoadedModelEntry] = msgspec.field(default_factory=list)


class OllamaAdapter(OpenAIAdapter):
    """The WorkerAdapter of kind `ollama`."""

    async def probe(self) -> WorkerReport:
        """Read the models, and the contexts of those in memory. Raises WorkerFailed."""
        listed = await self.models()
        try:
            loaded: LoadedModels = await self.http.get_json("api/ps", LoadedModels)
        except WorkerFailed:
            loaded = LoadedModels()
        contexts = {model.name: model.context_length for model in loaded.models if model.context_length}
        return WorkerReport(models=listed.names, context_lengths=contexts)
