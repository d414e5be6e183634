"""Doors: may new requests come in? They close in two steps when the gateway stops (see lifecycle.py)."""

from dataclasses import dataclass


@dataclass(slots=True)
class Doors:
    """`ready`: balancers may send requests here. `open`: requests that come are served."""

    ready: bool = True
    open: bool = True
