"""Whose turn it is."""

from typing import Annotated, Any

from msgspec import Meta, field

from gateway.settings.types import (
    Branch,
    NotNegative,
    Positive,
    Seconds,
)


class TokenCostSettings(Branch, frozen=True, kw_only=True):
    """What a request costs in the queue: units of work per token."""

    uncached: Annotated[NotNegative, Meta(description="Units of a prompt token that is computed.")] = 1.0
    cached: Annotated[NotNegative, Meta(description="Units of a prompt token that is cached.")] = 0.1
    output: Annotated[NotNegative, Meta(description="Units of an output token.")] = 2.0


class QueueingSettings(Branch, frozen=True, kw_only=True):
    """Who waits, and for how long."""

    across: Annotated[
        str, Meta(description="Name of a queue policy across tenants; `sfq` is kept exactly by all gateways.")
    ] = "sfq"
    options: Annotated[
        dict[str, Any], Meta(description="Options of that policy; see the list of policies.")
    ] = field(default_factory=dict)
    within: Annotated[
        str, Meta(description="Order inside a tenant: `fcfs`, `edf`, `hrrn`, `longest_prefix`.")
    ] = "hrrn"
    costs: Annotated[TokenCostSettings, Meta(description="What a request costs.")] = field(
        default_factory=TokenCostSettings
    )
    release_window_tokens: Annotated[
        Positive, Meta(description="Uncached prompt tokens that may be on their way to one worker.")
    ] = 16384
    waiting_requests_max: Annotated[
        Positive, Meta(description="Requests that may wait, per model and gateway.")
    ] = 1000
    waiting_tokens_max: Annotated[
        Positive, Meta(description="Uncached prompt tokens that may wait, per model and gateway.")
    ] = 32 * 1024**2
    tenant_waiting_requests_max: Annotated[
        Positive | None, Meta(description="Of one tenant; without it, only a full room is shared out evenly.")
    ] = None
    tenant_waiting_tokens_max: Annotated[Positive | None, Meta(description="Of one tenant.")] = None
    preempts: Annotated[
        bool,
        Meta(
            description="Take a worker's place back from a batch request that has not brought a first token when "
            "another one would have to wait for it, at any gateway; the batch request waits again."
        ),
    ] = False
    hold: Annotated[
        NotNegative | None,
        Meta(
            description="How much dearer than its best worker another may be for a request to go there now, as a "
            "share (10 ms may it be in any case); else it waits for that one, and others take the free one. null: "
            "any that has room will do."
        ),
    ] = 0.0
    whole_from_streams: Annotated[
        bool,
        Meta(
            description="Ask SGLang and vLLM for a stream also where the client wants its answer at once, and put "
            "it together here: the first token makes room for the next request. Requests with fields that a "
            "stream may not answer are passed as they are."
        ),
    ] = True
    waiting_seconds_max: Annotated[Seconds, Meta(description="Longest wait for a turn.")] = 30.0
