"""Reads the models of LiteLLM's config.yaml as models and workers of radixgate.

model_list:
  - model_name: gpt-4o-mini                      the name in requests: an alias here
    litellm_params:
      model: hosted_vllm/llama-3.1-8b            provider / the model's name at the worker
      api_base: http://10.0.0.2:8000/v1          the worker
      api_key: os.environ/VLLM_KEY               ${env:VLLM_KEY}
"""

from collections.abc import Mapping
from typing import Any

from gateway.litellm.import_result import ImportResult, LitellmFormatError, Row, unique_identifier

KINDS = {"hosted_vllm": "vllm", "vllm": "vllm", "openai": "openai", "text-completion-openai": "openai"}
"""Kind of worker by LiteLLM's provider, for providers with the OpenAI API at a configurable address."""

ENVIRONMENT = "os.environ/"
COSTS = {
    "input_cost_per_token": "input",
    "cache_read_input_token_cost": "cached_input",
    "output_cost_per_token": "output",
}
IMPORTED_PARAMS = {"model", "api_base", "base_url", "api_key", *COSTS}


def read_config(tree: Any, result: ImportResult) -> None:
    """Read a config into the result. Raises LitellmFormatError."""
    if not isinstance(tree, Mapping):
        raise LitellmFormatError("expected a mapping with model_list")
    entries = tree.get("model_list") or []
    if not isinstance(entries, list):
        raise LitellmFormatError("model_list: expected a list")
    workers: dict[str, dict[str, Any]] = {}
    models: dict[str, dict[str, Any]] = {}
    for at, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("litellm_params"), Mapping):
            raise LitellmFormatError(f"model_list[{at}]: expected model_name and litellm_params")
        _read_model(f"model_list[{at}]", entry, workers, models, result)
    result.workers += workers.values()
    result.models += models.values()
    general = tree.get("general_settings") or {}
    allowed = general.get("allowed_ips") or ()
    result.addresses = tuple(map(str, allowed))
    for branch in ("general_settings", "litellm_settings", "router_settings", "environment_variables"):
        inner = tree.get(branch) or {}
        result.note_not_imported(branch, inner, *(name for name in inner if name != "allowed_ips"))


def _read_model(
    where: str,
    entry: Row,
    workers: dict[str, dict[str, Any]],
    models: dict[str, dict[str, Any]],
    result: ImportResult,
) -> None:
    params, alias = entry["litellm_params"], str(entry.get("model_name") or "")
    provider, _, name = str(params.get("model") or "").partition("/")
    base = str(params.get("api_base") or params.get("base_url") or "").rstrip("/").removesuffix("/v1")
    if provider not in KINDS or not name or not base.startswith(("http://", "https://")):
        result.not_imported.append(
            f"{where} ({alias}): {provider or 'no'} provider at {base or 'no address'}"
        )
        return
    worker = workers.get(base)
    if worker is None:
        identity = unique_identifier(
            base.partition("://")[2], "worker", {w["id"]: w for w in workers.values()}
        )
        worker = workers[base] = {"id": identity, "kind": KINDS[provider], "url": base, "models": []}
        if params.get("api_key"):
            worker["api_key"] = _reference(str(params["api_key"]), identity, result)
    if name not in worker["models"]:
        worker["models"].append(name)
    model = models.setdefault(name, {"name": name, "aliases": []})
    if alias and alias != name and alias not in model["aliases"]:
        owner = next((m["name"] for m in models.values() if alias in (m["name"], *m["aliases"])), None)
        if owner is None:
            model["aliases"].append(alias)
        else:
            result.not_imported.append(
                f"{where} ({alias}): is an alias of {owner}, and cannot be one of {name} as well"
            )
    result.note_not_imported(
        f"{where} ({alias})", params, *(name for name in params if name not in IMPORTED_PARAMS)
    )
    if "prices" not in model and (prices := _prices({**_info(entry), **params})):
        model["prices"] = prices
    rest = {name: value for name, value in _info(entry).items() if name not in COSTS}
    result.note_not_imported(f"{where} ({alias})", {"model_info": rest}, "model_info")


def _info(entry: Row) -> Row:
    found = entry.get("model_info")
    return found if isinstance(found, Mapping) else {}


def _prices(costs: Mapping[str, Any]) -> dict[str, float]:
    """Convert costs per token into prices per million tokens; empty if input or output has no cost."""
    found = {ours: costs[theirs] for theirs, ours in COSTS.items() if _is_number(costs.get(theirs))}
    if not {"input", "output"} <= found.keys():
        return {}
    return {name: round(cost * 1e6, 9) for name, cost in found.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _reference(key: str, worker: str, result: ImportResult) -> str:
    """Return a reference to an environment variable for an API key: secrets are not written to the file."""
    if key.startswith(ENVIRONMENT):
        return f"${{env:{key.removeprefix(ENVIRONMENT)}}}"
    name = "WORKER_KEY_" + "".join(c if c.isalnum() else "_" for c in worker).upper()
    result.not_imported.append(f"worker {worker}: its api_key; set the environment variable {name} to it")
    return f"${{env:{name}}}"
