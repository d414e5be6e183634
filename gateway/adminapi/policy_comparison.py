"""The operation that compares the routing policy in force with the shadow policy, over all gateways."""

from typing import Any

import msgspec

from gateway.adminapi.operation import Operation, OperationRequest, OperationResponse
from gateway.explorer.activity import ActivityReport, ActivityReporter, ShadowReport
from gateway.process.settings_in_force import SettingsInForce


class PoliciesCompared(msgspec.Struct, kw_only=True):
    """The policy in force, and the shadow policy beside it; null where there is none.

    `share`: of the requests, which the shadow policy decides. `all` and `by_shadow`: the activity of all requests,
    and of those that the shadow policy decided.
    """

    gateways: list[str]
    policy: str
    shadow_policy: str | None
    share: float
    shadow: ShadowReport | None
    all: dict[str, Any]
    by_shadow: dict[str, Any] | None


def operations(activity: ActivityReporter, in_force: SettingsInForce) -> list[Operation]:
    """Return the operation that compares the policies."""

    async def show(request: OperationRequest) -> OperationResponse:
        request.query_parameters()
        return OperationResponse(value=policies_compared(await activity.report([], 0), in_force))

    return [
        Operation(
            method="GET",
            path="/policies",
            role="viewer",
            summary="Compare the routing policy in force with the shadow policy.",
            handle=show,
            response_type=PoliciesCompared,
        )
    ]


def policies_compared(report: ActivityReport, in_force: SettingsInForce) -> PoliciesCompared:
    """Return the comparison that a report on all gateways gives."""
    routing = in_force.loaded.settings.routing
    return PoliciesCompared(
        gateways=report.gateways,
        policy=routing.policy,
        shadow_policy=routing.shadow.policy if routing.shadow is not None else None,
        share=routing.shadow.share if routing.shadow is not None else 0.0,
        shadow=report.shadow,
        all=report.all,
        by_shadow=report.by_shadow,
    )
