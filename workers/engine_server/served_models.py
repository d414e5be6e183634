"""The models that a worker serves: its own, and its LoRA adapters."""

from typing import Any

from workers.engine_server.engine_worker import EngineWorker
from workers.engine_server.errors import ApiError


def requested_lora(worker: EngineWorker, model: str | None) -> str:
    """Return the LoRA adapter that a request's `model` names; "" for the model itself.

    Raises:
        ApiError: There is no such model.
    """
    if model is None or model == worker.options.model_name:
        return ""
    if model not in worker.engine.loras:
        raise ApiError(404, f"The model {model!r} does not exist.", param="model", code="model_not_found")
    return model


def model_entries(worker: EngineWorker) -> list[dict[str, Any]]:
    """Return the entries of /v1/models, with vLLM's fields `root` and `parent`; the model itself comes first."""
    name, options = worker.options.model_name, worker.options
    served = [(name, options.model, None), *((lora, path, name) for lora, path in options.lora_modules)]
    return [
        {
            "id": model,
            "object": "model",
            "created": worker.created,
            "owned_by": "radixgate",
            "root": str(root),
            "parent": parent,
            "max_model_len": worker.engine.info.context_length,
        }
        for model, root, parent in served
    ]
