"""Who waits, and what each tenant has received: in all gateways together.

The operators' listener answers it itself (gateway/web/admin_app.py), also where there is no database, and while that is
away; here it stands for the document.
"""

from gateway.adminapi.operation import OperationResponse, OperationRequest, Operation
from gateway.queueing.queue_report import AllQueues, QueueReport


def operations(queues: AllQueues) -> list[Operation]:
    async def look(call: OperationRequest) -> OperationResponse:
        call.parameters()
        return OperationResponse(value=await queues.report())

    return [
        Operation(
            method="GET",
            path="/queue",
            role="viewer",
            does="Who waits, how long and why, and what each tenant received against its share, in all gateways.",
            handle=look,
            gives=QueueReport,
        )
    ]
