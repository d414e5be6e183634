"""Doors: may new requests come in, and who is inside? They close in two steps when the gateway stops."""

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class Doors:
    """`ready`: balancers may send requests here. `open`: requests that come are served. `inside`: being served."""

    ready: bool = True
    open: bool = True
    inside: "set[asyncio.Task[object]]" = field(default_factory=set)

    def clear(self) -> None:
        """Everybody out, now."""
        for task in self.inside:
            task.cancel()
