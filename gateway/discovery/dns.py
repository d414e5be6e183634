"""Workers behind a name: one for each of its addresses, as of a headless service in Kubernetes, or of Consul."""

import asyncio
import socket

from gateway.discovery.source import SourceAway
from gateway.settings.workers import Discovery, Worker


class DnsSource:
    def __init__(self, settings: Discovery) -> None:
        self.name = f"DNS name {settings.name}"
        self.seconds = settings.every_seconds
        self._settings = settings

    async def find(self) -> list[Worker]:
        at = self._settings
        try:
            found = await asyncio.get_running_loop().getaddrinfo(at.name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as err:  # the latter of a label that is too long, or empty
            raise SourceAway(f"it is not resolved: {err}") from err
        addresses = sorted({str(address[0]) for *_, address in found})
        return [at.worker(address, at.port or 8000) for address in addresses]
