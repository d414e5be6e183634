"""The operation that shows the queues of all gateways: waiting requests, and what each tenant has received.

The operators' listener serves it itself (gateway/web/admin_app.py), because it works without a database; here it is
part of the OpenAPI document.
"""

from gateway.adminapi.operation import Operation, OperationRequest, OperationResponse
from gateway.dispatch.queue_report import QueueReport
from gateway.dispatch.queue_reporter import QueueReporter


def operations(queues: QueueReporter) -> list[Operation]:
    """Return the operation that shows the queues."""

    async def show_queues(request: OperationRequest) -> OperationResponse:
        request.query_parameters()
        return OperationResponse(value=await queues.report())

    return [
        Operation(
            method="GET",
            path="/queue",
            role="viewer",
            summary="Show which requests wait, how long and why, and what each tenant received against its share.",
            handle=show_queues,
            response_type=QueueReport,
        )
    ]
