"""What tenants can ask for."""

from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.settings.prices import PriceSettings
from gateway.settings.types import Branch, FilePath, Name, Positive

WORDS_FOR_TOKENIZERS = ("text", "worker")
"""All else is a directory."""

Weight = Annotated[float, Meta(ge=0, le=1e6)]


class ModelSettings(Branch, frozen=True, kw_only=True):
    """A model that tenants can ask for."""

    name: Annotated[Name, Meta(description="Name in requests, and at the workers.")]
    aliases: Annotated[tuple[Name, ...], Meta(description="Further names for the same model.")] = ()
    tokenizer: Annotated[
        FilePath,
        Meta(
            description="Directory with tokenizer.json (and chat template), or `text`: no tokenizer, "
            "four bytes of canonical text count as a token, and bounds by tokens are estimates; or `worker`: its "
            "engine is asked for the tokens of each new prompt (vLLM, SGLang, embedded)."
        ),
    ] = "text"
    block_size: Annotated[
        Annotated[int, Meta(ge=1, le=4096)],
        Meta(description="Tokens per index block; a multiple of each worker's page size."),
    ] = 64
    prompt_ids: Annotated[
        Literal["off", "completions", "all"],
        Meta(
            description="Prompts go to vLLM, SGLang and embedded workers as token ids, to be tokenised once: those "
            "of `completions`; `all`: also SGLang's chats (`input_ids`). Only with the very tokenizer and chat "
            "template that the engine has."
        ),
    ] = "off"
    context_length: Annotated[
        Positive | None,
        Meta(description="Longest prompt and answer together; by default the worker decides."),
    ] = None
    prices: Annotated[
        PriceSettings | None, Meta(description="What its tokens cost; without them it costs nothing.")
    ] = None
    splits: Annotated[
        dict[Name, Weight],
        Meta(
            description="Models that its requests are divided among, by weight: {m: 95, m-next: 5}. A conversation "
            "stays with one of them; those that nobody serves take no part.",
            max_length=100,
        ),
    ] = field(default_factory=dict)
    fallbacks: Annotated[
        tuple[Name, ...],
        Meta(
            description="Models that answer, in this order, where nobody serves it, or its workers are full or "
            "failed before the first byte.",
            max_length=10,
        ),
    ] = ()
    tokenizer_memory_bytes_max: Annotated[
        Positive,
        Meta(description="Memory for the tokens of messages that the tokenizer has seen before."),
    ] = 64 * 1024**2
