"""The protocol of sources of workers, which are queried whenever their workers may have changed."""

from typing import Protocol

from gateway.settings.workers import WorkerSettings


class SourceUnavailable(Exception):
    """A source cannot be queried now; the text has the reason. Its last result remains in force."""


class WorkerSource(Protocol):
    """A source of workers."""

    name: str
    """Name in logs."""

    async def find(self) -> list[WorkerSettings]:
        """Return all workers of the source, with checked settings. Raises SourceUnavailable."""
        ...

    async def wait(self) -> None:
        """Wait until the source should be queried again, after a notification or after some time."""
        ...
