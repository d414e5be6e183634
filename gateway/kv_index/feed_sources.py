"""The endpoints at which a worker publishes its KV events and its load, by the settings."""

import re
from urllib.parse import urlsplit

from gateway.settings.workers import KvEventsSettings, LoadFeedSettings, WorkerSettings
from workers.kv_events.source import EventSource, reachable
from workers.load_reports.load_subscriber import LoadSource

_PORT = re.compile(r"^(tcp://.*:)(\d+)$")


def event_sources(worker: WorkerSettings) -> tuple[EventSource, ...] | None:
    """Return an endpoint of KV events for each rank; an empty tuple if the worker's events are not followed.

    None means that the worker reports its endpoints itself.
    """
    at = worker.kv_events
    if not isinstance(at, KvEventsSettings):
        return None if at == "auto" else ()
    return tuple(
        EventSource(
            endpoint=_of_rank(worker, at.endpoint, rank),
            replay=_of_rank(worker, at.replay_endpoint, rank) if at.replay_endpoint is not None else None,
            topic=at.topic,
        )
        for rank in range(at.ranks)
    )


def load_sources(worker: WorkerSettings) -> tuple[LoadSource, ...] | None:
    """Return an endpoint of the load feed for each rank, in the same way as `event_sources`."""
    at = worker.load_feed
    if not isinstance(at, LoadFeedSettings):
        return None if at == "auto" else ()
    return tuple(LoadSource(endpoint=_of_rank(worker, at.endpoint, rank)) for rank in range(at.ranks))


def _of_rank(worker: WorkerSettings, endpoint: str, rank: int) -> str:
    host = urlsplit(worker.url).hostname or ""
    return reachable(_PORT.sub(lambda found: f"{found[1]}{int(found[2]) + rank}", endpoint), host)
