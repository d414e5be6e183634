"""Settings of the models that tenants can request."""

from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.settings.prices import PriceSettings
from gateway.settings.types import Branch, FilePath, Name, Positive

TOKENIZER_KEYWORDS = ("text", "worker")
"""Values of `tokenizer` that are not directories."""

Weight = Annotated[float, Meta(ge=0, le=1e6)]


class ModelSettings(Branch, frozen=True, kw_only=True):
    """A model that tenants can request."""

    name: Annotated[Name, Meta(description="Name of the model, in requests and at the workers.")]
    aliases: Annotated[
        tuple[Name, ...],
        Meta(
            description="Other names for the model in requests, or patterns such as `claude-*`. Names of models "
            "take precedence, then exact aliases, then patterns in this order.",
            max_length=1000,
        ),
    ] = ()
    tenant_aliases: Annotated[
        dict[Name, tuple[Name, ...]],
        Meta(
            description="Aliases for single tenants, by tenant id: {acme: [gpt-4o*]}. They take precedence over "
            "the names of models and the aliases for all tenants.",
            max_length=1000,
        ),
    ] = field(default_factory=dict)
    tokenizer: Annotated[
        FilePath,
        Meta(
            description="Directory with tokenizer.json and the chat template. `text`: no tokenizer; four bytes of "
            "canonical text count as a token, and limits by tokens are estimates. `worker`: the engine of a worker "
            "tokenizes each new prompt (vLLM, SGLang, embedded)."
        ),
    ] = "text"
    block_size: Annotated[
        Annotated[int, Meta(ge=1, le=4096)],
        Meta(description="Tokens per block of the prefix index; a multiple of each worker's page size."),
    ] = 64
    prompt_ids: Annotated[
        Literal["off", "completions", "all"],
        Meta(
            description="Send prompts to vLLM, SGLang and embedded workers as token ids, so that prompts are "
            "tokenized only once. `completions`: prompts of completions; `all`: also chats for SGLang "
            "(`input_ids`). Tokenizer and chat template must be exactly those of the engine."
        ),
    ] = "off"
    context_length: Annotated[
        Positive | None,
        Meta(
            description="Largest number of tokens of prompt and answer together; by default the worker's own bound."
        ),
    ] = None
    prices: Annotated[
        PriceSettings | None,
        Meta(description="Prices of the model's tokens; without prices the model is free."),
    ] = None
    splits: Annotated[
        dict[Name, Weight],
        Meta(
            description="Divides the requests among these models by weight: {m: 95, m-next: 5}. A conversation "
            "stays with one model; models without workers are left out.",
            max_length=100,
        ),
    ] = field(default_factory=dict)
    fallbacks: Annotated[
        tuple[Name, ...],
        Meta(
            description="Models that answer instead, in this order, if this model has no workers, or if its "
            "workers are full or fail before the first byte.",
            max_length=10,
        ),
    ] = ()
    first_worker_seconds_max: Annotated[
        Annotated[float, Meta(ge=0, le=3600)],
        Meta(
            description="Longest time that requests wait while the model has no worker, for an autoscaler that "
            "starts one (`radixgate_waiting_requests` counts them). 0: they get a 503 `no_worker` at once."
        ),
    ] = 0.0
    tokenizer_memory_bytes_max: Annotated[
        Positive,
        Meta(description="Largest cache, in bytes, for the tokens of earlier messages."),
    ] = 64 * 1024**2
