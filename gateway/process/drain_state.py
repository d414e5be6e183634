"""The state of the drain: whether the gateway accepts requests, and which requests it is serving.

gateway/runtime/drain.py changes the state step by step when the gateway stops. Answers that begin while the gateway
is not ready close their connections, so that clients open new ones elsewhere.
"""

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class DrainState:
    """Whether new requests are accepted, and the tasks of the requests that are being served."""

    ready: bool = True
    """Whether the readiness probe succeeds, so that load balancers send requests here."""

    accepting: bool = True
    """Whether new requests are served; otherwise they are refused with `shutting_down`."""

    requests: "set[asyncio.Task[object]]" = field(default_factory=set)
    """One task for each request that is being served."""

    async def wait_for_requests(self, seconds_max: float) -> None:
        """Wait until no request is being served."""
        if self.requests:
            await asyncio.wait(self.requests, timeout=seconds_max)

    def cancel_requests(self) -> None:
        """Cancel every request that is still being served."""
        for task in self.requests:
            task.cancel()
