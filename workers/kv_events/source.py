"""EventSource: the address where an engine publishes its KV events."""

import re
from dataclasses import dataclass

ALL_ADDRESSES = re.compile(r"^tcp://(\*|0\.0\.0\.0|::|\[::\])(?=:\d+$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """Where one data-parallel rank of an engine publishes its KV events, as ZMQ addresses."""

    endpoint: str
    replay: str | None = None
    """Address for replays of earlier events; None if the engine keeps none."""
    topic: str = ""
    page_size: int | None = None
    """Tokens of one page of its cache; None if the engine does not report it."""


def reachable(endpoint: str, host: str) -> str:
    """Return an address to connect to; for an engine that listens on all addresses, one of its HTTP `host`."""
    host = f"[{host}]" if ":" in host else host
    return ALL_ADDRESSES.sub(lambda _: f"tcp://{host}", endpoint)
