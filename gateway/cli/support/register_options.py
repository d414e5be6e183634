"""`radixgate worker --register`: registers a worker in Redis with the URL at which gateways reach it."""

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.cli.support.command_error import CommandError
from gateway.discovery.registration import keep_registered
from gateway.discovery.worker_registry import WorkerRegistry
from gateway.settings.redis_address import redis_url_problem
from gateway.settings.types import IDENTIFIER
from gateway.settings.urls import url_problem
from radix_cache.redis.scripts import ScriptCaller

if TYPE_CHECKING:  # needs the extra `engine`
    from workers.engine_server.serving import ServingWorker

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # nosec B104
"""Listening addresses that no gateway can connect to, with the addresses that reach them on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterOptions:
    """The --register options of a worker."""

    redis: str
    """URL of Redis."""

    id: str | None
    """Id of the worker; None: made of the host name and the port."""

    url: str | None
    """URL at which gateways reach the worker; None: where the worker listens."""

    prefix: str
    """What all keys in Redis begin with: the setting `redis.prefix` of the gateways."""

    def check(self, host: str) -> None:
        """Raise CommandError if an option is wrong; `host` is the address on which the worker listens."""
        problem = redis_url_problem(self.redis) if "://" in self.redis else "expected redis://host:6379/0"
        if problem:
            raise CommandError(f"--register: {problem}", 2)
        if problem := url_problem(self.url) if self.url is not None else None:
            raise CommandError(f"--register-url: {problem}", 2)
        if self.url is None and host in ANY_ADDRESS:
            raise CommandError(
                f"--register-url: gateways cannot connect to {host}; give a URL that they can reach", 2
            )
        if self.id is not None and not IDENTIFIER.match(self.id):
            raise CommandError("--register-id: expected 1 to 64 letters, digits, `.`, `_` and `-`", 2)

    @asynccontextmanager
    async def open(self, kind: str, listen_url: str, role: str = "both") -> AsyncIterator[None]:
        """Keep the worker registered for as long as the context is open; `listen_url` is where it listens."""
        name = f"{socket.gethostname()}-{urlsplit(listen_url).port}"
        scripts = ScriptCaller(self.redis)
        worker = {
            "id": self.id or re.sub(r"[^A-Za-z0-9._-]", "-", name)[-64:].lstrip("._-"),
            "kind": kind,
            "url": self.url or listen_url,
            "role": role,
        }
        try:
            async with keep_registered(WorkerRegistry(scripts, self.prefix), worker):
                yield
        finally:
            await scripts.close()

    @asynccontextmanager
    async def open_for_embedded(self, serving: "ServingWorker") -> AsyncIterator[None]:
        """Keep an embedded worker registered while it serves; its own answers report its role."""
        async with self.open("embedded", serving.url):
            yield
