"""Source: somewhere that knows of workers. Each is asked again and again, and may be away."""

from typing import Protocol

from gateway.settings.workers import WorkerSettings


class SourceUnavailable(Exception):
    """It cannot say now; says why. What it said before goes on to hold."""


class WorkerSource(Protocol):
    """`name`: for logs. `seconds`: between two questions."""

    name: str
    seconds: float

    async def find(self) -> list[WorkerSettings]:
        """All workers that it knows of, with checked settings. Raises SourceAway."""
        ...
