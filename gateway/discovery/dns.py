"""Workers behind a name: one for each of its addresses, as of a headless service in Kubernetes, or of Consul."""

import asyncio
import socket

from gateway.discovery.source import SourceUnavailable
from gateway.settings.workers import DiscoverySettings, WorkerSettings

ANSWER_SECONDS_MAX = 10.0
"""A gateway that starts waits for its sources once; a resolver may try servers and domains for minutes."""


class DnsSource:
    def __init__(self, settings: DiscoverySettings) -> None:
        self.name = f"DNS name {settings.name}"
        self.seconds = settings.every_seconds
        self._settings = settings

    async def find(self) -> list[WorkerSettings]:
        at = self._settings
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                found = await asyncio.get_running_loop().getaddrinfo(at.name, None, type=socket.SOCK_STREAM)
        except TimeoutError as err:
            raise SourceUnavailable(f"it is not resolved within {ANSWER_SECONDS_MAX:g} seconds") from err
        except (OSError, UnicodeError) as err:  # the latter of a label that is too long, or empty
            raise SourceUnavailable(f"it is not resolved: {err}") from err
        addresses = sorted({str(address[0]) for *_, address in found})
        return [at.worker(address, at.port or 8000) for address in addresses]
