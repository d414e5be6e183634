"""Where a worker publishes its KV events, as the settings have it."""

import re
from urllib.parse import urlsplit

from gateway.settings.workers import KvEventsAt, Worker
from workers.kv_events.source import EventSource, reachable

_PORT = re.compile(r"^(tcp://.*:)(\d+)$")


def event_sources(worker: Worker) -> tuple[EventSource, ...] | None:
    """One a rank; none if it is not to be followed. None: as the worker says itself."""
    at = worker.kv_events
    if not isinstance(at, KvEventsAt):
        return None if at == "auto" else ()
    host = urlsplit(worker.url).hostname or ""

    def of(endpoint: str, rank: int) -> str:
        return reachable(_PORT.sub(lambda found: f"{found[1]}{int(found[2]) + rank}", endpoint), host)

    return tuple(
        EventSource(
            endpoint=of(at.endpoint, rank),
            replay=of(at.replay_endpoint, rank) if at.replay_endpoint is not None else None,
            topic=at.topic,
        )
        for rank in range(at.ranks)
    )
