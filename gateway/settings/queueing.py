"""Settings of the queue where requests wait for a worker."""

from typing import Annotated, Any

from msgspec import Meta, field

from gateway.settings.types import (
    Branch,
    NotNegative,
    Positive,
    Seconds,
)


class TokenCostSettings(Branch, frozen=True, kw_only=True):
    """The cost of a request in the fair queue, in units of work per token."""

    uncached: Annotated[NotNegative, Meta(description="Units of a prompt token that has to be computed.")] = (
        1.0
    )
    cached: Annotated[
        NotNegative, Meta(description="Units of a prompt token that the worker has cached.")
    ] = 0.1
    output: Annotated[NotNegative, Meta(description="Units of an output token.")] = 2.0


class QueueingSettings(Branch, frozen=True, kw_only=True):
    """How requests wait for a worker: in which order, how many, and how long."""

    across: Annotated[
        str,
        Meta(
            description="Queue policy that orders tenants; see the list of policies. With `sfq` all gateways share "
            "one exact order."
        ),
    ] = "sfq"
    options: Annotated[
        dict[str, Any], Meta(description="Options of the queue policy; see the list of policies.")
    ] = field(default_factory=dict)
    within: Annotated[
        str,
        Meta(description="Order of the requests of one tenant: `fcfs`, `edf`, `hrrn` or `longest_prefix`."),
    ] = "hrrn"
    costs: Annotated[TokenCostSettings, Meta(description="Cost of a request in the queue.")] = field(
        default_factory=TokenCostSettings
    )
    release_window_tokens: Annotated[
        Positive,
        Meta(
            description="Largest number of uncached prompt tokens that are sent to one worker and not computed "
            "yet; further requests wait. The bound is smaller while several classes send requests, or while "
            "tenants with most of the recent work have requests waiting beside a tenant that has none. It is then "
            "what a worker computes in a share of the tightest `ttft_ms`: 0.3 for batch requests (0.2 for tenants "
            "with several requests waiting, beside others of their class), 0.6 for others."
        ),
    ] = 16384
    tenant_shards: Annotated[
        dict[str, Annotated[int, Meta(ge=1, le=24)]],
        Meta(
            description="In a Redis Cluster: models with a queue that is too busy for one primary, each with the "
            "number of shards (1 to 24) among which its tenants are divided. It must be the same in all gateways."
        ),
    ] = field(default_factory=dict)
    waiting_requests_max: Annotated[
        Positive, Meta(description="Largest number of waiting requests, for each model at each gateway.")
    ] = 1000
    waiting_tokens_max: Annotated[
        Positive,
        Meta(description="Largest number of waiting uncached prompt tokens, for each model and gateway."),
    ] = 32 * 1024**2
    tenant_waiting_requests_max: Annotated[
        Positive | None,
        Meta(
            description="Largest number of waiting requests of one tenant; by default a waiting room is divided "
            "evenly once it is full."
        ),
    ] = None
    tenant_waiting_tokens_max: Annotated[
        Positive | None, Meta(description="Largest number of waiting uncached prompt tokens of one tenant.")
    ] = None
    preempts: Annotated[
        bool,
        Meta(
            description="Stop a batch request that has no first token yet if a request at any gateway would have "
            "to wait for its place on a worker; the batch request then waits again."
        ),
    ] = False
    hold: Annotated[
        NotNegative | None,
        Meta(
            description="A request is sent to another worker than its best one if that costs at most this share "
            "more (10 ms more are always allowed). Otherwise it waits for its best worker, and other requests use "
            "the free one. null: a request uses any worker that has room."
        ),
    ] = 0.0
    whole_from_streams: Annotated[
        bool,
        Meta(
            description="Request a stream from SGLang and vLLM even if the client wants the whole answer at once, "
            "and assemble the answer in the gateway. This is done where the time of the first token matters: it "
            "makes room for the next waiting request, and shows the speed of a worker that has answered little. "
            "Requests with fields that a stream cannot answer are passed on unchanged."
        ),
    ] = True
    waiting_seconds_max: Annotated[
        Seconds, Meta(description="Longest time that a request waits for a worker.")
    ] = 30.0
