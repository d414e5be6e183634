"""Settings of the queue in which requests wait for a worker."""

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
            description="Queue policy that orders tenants; see the list of policies. With `sfq` all gateways "
            "together keep one exact order."
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
            description="Uncached prompt tokens that may be sent to one worker and not be computed yet, at "
            "most; further requests wait. While several classes send requests, or tenants with most "
            "of the recent work have requests waiting beside one that has none, it is fewer: what a "
            "worker computes in 0.3 of the tightest `ttft_ms` for batch requests (in 0.2 for "
            "tenants with several requests waiting, beside others of their class), and in 0.6 of it "
            "for others."
        ),
    ] = 16384
    tenant_shards: Annotated[
        dict[str, Annotated[int, Meta(ge=1, le=24)]],
        Meta(
            description="In a Redis Cluster: models whose queue is too much for one primary, each with the "
            "number of shards (1 to 24) among which its tenants are divided. The same in all gateways."
        ),
    ] = field(default_factory=dict)
    waiting_requests_max: Annotated[
        Positive, Meta(description="Requests that may wait, for each model at each gateway.")
    ] = 1000
    waiting_tokens_max: Annotated[
        Positive, Meta(description="Uncached prompt tokens that may wait, for each model at each gateway.")
    ] = 32 * 1024**2
    tenant_waiting_requests_max: Annotated[
        Positive | None,
        Meta(
            description="Requests of one tenant that may wait; by default a waiting room is divided evenly once "
            "it is full."
        ),
    ] = None
    tenant_waiting_tokens_max: Annotated[
        Positive | None, Meta(description="Uncached prompt tokens of one tenant that may wait.")
    ] = None
    preempts: Annotated[
        bool,
        Meta(
            description="Stop a batch request that has no first token yet when another request would have to "
            "wait for its place on a worker, at any gateway; the batch request waits again."
        ),
    ] = False
    hold: Annotated[
        NotNegative | None,
        Meta(
            description="How much more expensive than its best worker another worker may be for a request to be "
            "sent there now, as a share (10 ms more are always allowed); otherwise the request waits for its "
            "best worker, and other requests use the free one. null: the request uses any worker that has room."
        ),
    ] = 0.0
    whole_from_streams: Annotated[
        bool,
        Meta(
            description="Request a stream from SGLang and vLLM even if the client wants the whole answer at "
            "once, and assemble it in the gateway, where the first token matters: while requests wait, it makes "
            "room for the next one, and it shows the speed of a worker that has answered little. Requests with "
            "fields that a stream cannot answer are passed on unchanged."
        ),
    ] = True
    waiting_seconds_max: Annotated[
        Seconds, Meta(description="Longest time that a request waits for a worker.")
    ] = 30.0
