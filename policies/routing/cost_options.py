"""The options of the policy `cost`, and the constants of its formula (cost.py) that are no options."""

from typing import Annotated

from msgspec import Meta

from policies.routing.protocol import PolicyOptions

RUNNING_MAX = 256
"""Requests that a worker is assumed to run at a time, at most (vLLM's default); the others wait."""

Weight = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]


class CostOptions(PolicyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the policy `cost`: the constants of the formula at the top of cost.py."""

    backlog_ms: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)],
        Meta(description="Mean backlog of the workers, in milliseconds of prefill, at which the price is 1."),
    ] = 100.0
    delay_weight: Annotated[
        Weight, Meta(description="Weight of the delay that a prefill causes to each running stream.")
    ] = 0.02
    memory_weight: Annotated[
        Weight, Meta(description="Weight of the KV memory that a request holds, where others may need it.")
    ] = 20.0
    host_credit: Annotated[
        Share, Meta(description="Worth of a cached token in host memory; on the GPU it is 1.")
    ] = 0.75
    disk_credit: Annotated[
        Share, Meta(description="Worth of a cached token on disk or further away; on the GPU it is 1.")
    ] = 0.25
    tie: Annotated[
        Weight, Meta(description="Costs within this share of the best count as equal, and one is drawn.")
    ] = 0.0
    slow_start: Annotated[
        Weight,
        Meta(description="Share by which a worker that has just joined or come back counts as slower."),
    ] = 1.0
    slow_start_seconds: Annotated[
        Weight,
        Meta(description="Time in which the slow start fades; 0: a new worker gets its whole load at once."),
    ] = 10.0
    stay: Annotated[
        Share,
        Meta(description="Share by which the worker that holds a session's longest prefix is cheaper."),
    ] = 0.02
    copy_share: Annotated[
        Share,
        Meta(
            description="How much of a copy that demand asks for is charged to the later requests that share it; "
            "0: prefixes are only copied where queues are long."
        ),
    ] = 1.0
