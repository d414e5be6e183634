"""A real Envoy in front of a gateway and its scripted workers."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NewGateway, RunningGateway
from tests.integration.conftest import records as records
from tests.stage.envoy import PROGRAM, Envoy


class CarriedGateway:
    """A gateway, and the Envoy that carries its requests."""

    def __init__(self, gateway: RunningGateway, envoy: Envoy) -> None:
        self.gateway = gateway
        self.envoy = envoy

    def post(self, path: str = "/v1/chat/completions", *, tenant: str = "acme", **more: Any) -> Any:
        """Send a request through Envoy: `async with carried.post(json={...}) as response`."""
        headers = {**self.gateway.headers(tenant), **more.pop("headers", {})}
        return self.gateway.http.post(f"{self.envoy.url}{path}", headers=headers, **more)

    def chat(self, text: str = "hello", *, tenant: str = "acme", **more: Any) -> Any:
        """Send a chat completion through Envoy."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
        return self.post(tenant=tenant, json=body)


Carried = Callable[..., AbstractAsyncContextManager[CarriedGateway]]


@pytest.fixture
def carried(gateway: NewGateway, tmp_path: Path) -> Carried:
    """Return a function that makes gateways behind Envoy, with the arguments of the fixture `gateway`."""
    if not PROGRAM.exists():
        pytest.skip("there is no Envoy: `make test-envoy` installs it")

    @asynccontextmanager
    async def start(
        *workers: Any, envoy: dict[str, Any] | None = None, **settings: Any
    ) -> AsyncIterator[Any]:
        picked = {"listen.endpoint_picker": '{"port": 0}', **settings}
        async with gateway(*workers, **picked) as running:
            picker = running.here.endpoint_picker
            assert picker is not None
            port = int(picker.url.rpartition(":")[2])
            async with Envoy(tmp_path, port, **(envoy or {})) as proxy:
                yield CarriedGateway(running, proxy)

    return start
