"""`radixgate worker --register`: where a worker registers itself, as what, and where gateways reach it."""

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.cli.support.failure import Failure
from gateway.discovery.registration import registered
from gateway.discovery.registry import WorkerRegistry
from gateway.settings.redis_address import redis_url_problem
from gateway.settings.types import IDENTIFIER
from gateway.settings.urls import url_problem
from radix_cache.redis.scripts import ScriptCaller

if TYPE_CHECKING:  # the engine is an extra
    from workers.engine_server.serving import ServingWorker

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Addresses that gateways cannot connect to, and where they answer on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registering:
    """`id`, `url`: None takes them from where the worker listens."""

    redis: str
    id: str | None
    url: str | None
    prefix: str

    def check(self, host: str) -> None:
        """Raises Failure for what cannot be; `host` is where the worker listens."""
        problem = redis_url_problem(self.redis) if "://" in self.redis else "expected redis://host:6379/0"
        if problem:
            raise Failure(f"--register: {problem}", 2)
        if problem := url_problem(self.url) if self.url is not None else None:
            raise Failure(f"--register-url: {problem}", 2)
        if self.url is None and host in EVERYWHERE:
            raise Failure(f"--register-url: gateways cannot connect to {host}; say where they can", 2)
        if self.id is not None and not IDENTIFIER.match(self.id):
            raise Failure("--register-id: expected 1 to 64 letters, digits, `.`, `_` and `-`", 2)

    @asynccontextmanager
    async def as_worker(self, kind: str, at: str, role: str = "both") -> AsyncIterator[None]:
        """Registered, for as long as this is open. `at`: where it listens."""
        called = f"{socket.gethostname()}-{urlsplit(at).port}"
        scripts = ScriptCaller(self.redis)
        worker = {
            "id": self.id or re.sub(r"[^A-Za-z0-9._-]", "-", called)[-64:].lstrip("._-"),
            "kind": kind,
            "url": self.url or at,
            "role": role,
        }
        try:
            async with registered(WorkerRegistry(scripts, self.prefix), worker):
                yield
        finally:
            await scripts.close()

    @asynccontextmanager
    async def beside(self, serving: "ServingWorker") -> AsyncIterator[None]:
        """The embedded engine, while it serves. It says itself which half of a pair it is."""
        async with self.as_worker("embedded", serving.url):
            yield
