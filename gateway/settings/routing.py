"""Settings of routing: the choice of a worker for each request."""

from typing import Annotated, Any

from msgspec import Meta, field

from gateway.settings.types import (
    Branch,
)


class ShadowPolicySettings(Branch, frozen=True, kw_only=True):
    """A second routing policy that also ranks every request; see gateway/routing/shadow_policy.py."""

    policy: Annotated[str, Meta(description="Name of the second policy.")]
    options: Annotated[dict[str, Any], Meta(description="Options of the second policy.")] = field(
        default_factory=dict
    )
    share: Annotated[
        float, Meta(ge=0, le=1, description="Share of requests that are routed by the second policy.")
    ] = 0.0


class RoutingSettings(Branch, frozen=True, kw_only=True):
    """The choice of a worker for each request."""

    policy: Annotated[str, Meta(description="Routing policy; see the list of policies.")] = "cost"
    options: Annotated[
        dict[str, Any], Meta(description="Options of the routing policy; see the list of policies.")
    ] = field(default_factory=dict)
    prefill_tokens_min: Annotated[
        int,
        Meta(
            ge=0,
            description="Least number of uncached prompt tokens for which a prefill worker computes the prompt. "
            "Fewer are computed by the decode worker itself, if its engine can.",
        ),
    ] = 512
    shadow: Annotated[
        ShadowPolicySettings | None,
        Meta(description="A second policy that is compared with the first on live requests."),
    ] = None
