"""Whether the gateway accepts requests while it runs and while it stops, and which requests it is serving.

gateway/runtime/drain.py changes it, step by step, when the gateway stops.
Answers that begin while it is not ready close their connections, so that clients open new ones elsewhere.
"""

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class DrainState:
    """Whether new requests are welcome, and the tasks of the requests that are being served."""

    ready: bool = True
    """The readiness probe says ready: load balancers may send requests here."""

    accepting: bool = True
    """Requests that arrive are served; False: they are refused with `shutting_down`."""

    requests: "set[asyncio.Task[object]]" = field(default_factory=set)
    """One task for each request that is being served."""

    def cancel_requests(self) -> None:
        """Cancel every request that is still being served."""
        for task in self.requests:
            task.cancel()
