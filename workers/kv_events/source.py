"""EventSource: where an engine publishes its KV events."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """Addresses as ZMQ has them. `page_size`: tokens, where it says; `replay`: None if it keeps nothing."""

    endpoint: str
    replay: str | None = None
    topic: str = ""
    page_size: int | None = None
