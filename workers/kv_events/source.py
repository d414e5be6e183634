"""EventSource: where an engine publishes its KV events."""

import re
from dataclasses import dataclass

EVERYWHERE = re.compile(r"^tcp://(\*|0\.0\.0\.0|::|\[::\])(?=:\d+$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """Addresses as ZMQ has them. `page_size`: tokens, where it says; `replay`: None if it keeps nothing."""

    endpoint: str
    replay: str | None = None
    topic: str = ""
    page_size: int | None = None


def reachable(endpoint: str, host: str) -> str:
    """An engine that listens everywhere is reached where its HTTP is, at `host`."""
    host = f"[{host}]" if ":" in host else host
    return EVERYWHERE.sub(lambda _: f"tcp://{host}", endpoint)
