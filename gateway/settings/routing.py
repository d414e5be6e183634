"""Which worker serves a request."""

from typing import Annotated, Any

from msgspec import Meta, field

from gateway.settings.types import (
    Branch,
)


class ShadowPolicySettings(Branch, frozen=True, kw_only=True):
    """A second policy that ranks every request too; see gateway/routing/shadow_policy.py."""

    policy: Annotated[str, Meta(description="Name of the second policy.")]
    options: Annotated[dict[str, Any], Meta(description="Options of the second policy.")] = field(
        default_factory=dict
    )
    share: Annotated[
        float, Meta(ge=0, le=1, description="Share of the requests that the second policy decides.")
    ] = 0.0


class RoutingSettings(Branch, frozen=True, kw_only=True):
    """Which worker serves a request."""

    policy: Annotated[str, Meta(description="Name of a routing policy.")] = "cost"
    options: Annotated[
        dict[str, Any], Meta(description="Options of that policy; see the list of policies.")
    ] = field(default_factory=dict)
    prefill_tokens_min: Annotated[
        int,
        Meta(
            ge=0,
            description="Uncached prompt tokens from which on a prefill worker computes them; fewer a decode "
            "worker computes itself, if its engine can.",
        ),
    ] = 512
    shadow: Annotated[
        ShadowPolicySettings | None,
        Meta(description="A second policy that is compared with it on live requests."),
    ] = None
