"""Finds workers by DNS: one for each address of a name, as of a headless service in Kubernetes, or of Consul."""

import asyncio
import socket

from gateway.discovery.source import SourceUnavailable
from gateway.settings.workers import DiscoverySettings, WorkerSettings

ANSWER_SECONDS_MAX = 10.0
"""A starting gateway waits for its sources once, but a resolver may try servers and domains for minutes."""


class DnsSource:
    """A source with a worker at each address of a DNS name."""

    def __init__(self, settings: DiscoverySettings) -> None:
        self.name = f"DNS name {settings.name}"
        self._settings = settings

    async def find(self) -> list[WorkerSettings]:
        """Return a worker for each address of the name. Raises SourceUnavailable."""
        settings = self._settings
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                found = await asyncio.get_running_loop().getaddrinfo(
                    settings.name, None, type=socket.SOCK_STREAM
                )
        except TimeoutError as err:
            raise SourceUnavailable(
                f"the name is not resolved within {ANSWER_SECONDS_MAX:g} seconds"
            ) from err
        except (OSError, UnicodeError) as err:  # UnicodeError: a label is empty or too long
            raise SourceUnavailable(f"the name cannot be resolved: {err}") from err
        addresses = sorted({str(address[0]) for *_, address in found})
        return [settings.worker(address, settings.port or 8000) for address in addresses]

    async def wait(self) -> None:
        """Wait until the name is resolved again."""
        await asyncio.sleep(self._settings.every_seconds)
