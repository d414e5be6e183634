"""A worker with an API key answers it alone, but for probes and metrics."""

from collections.abc import Callable
from typing import Any

import pytest

from workers.engine.errors import ConfigInvalid
from workers.engine_server.options import WorkerOptions

Serve = Callable[..., Any]
KEY = "a key of this worker"


async def test_requests_need_the_key_and_probes_do_not(serving: Serve) -> None:
    body = {"prompt": "The gateway", "max_tokens": 2}
    async with serving(api_key=KEY) as client:
        for headers in ({}, {"Authorization": "Bearer another"}, {"Authorization": KEY}, {"X-Api-Key": KEY}):
            status, answer = await client.post("/v1/completions", body, **headers)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        status, answer = await client.get("/server_info")
        assert status == 401
        status, answer = await client.post("/v1/completions", body, Authorization=f"Bearer {KEY}")
        assert (status, answer["usage"]["completion_tokens"]) == (200, 2)
        for path in ("/health", "/ready", "/metrics"):
            async with client.session.get(client.url + path) as response:
                assert response.status == 200


def test_an_empty_key_is_refused_and_a_key_is_not_shown(tmp_path: Any) -> None:
    with pytest.raises(ConfigInvalid, match="api_key"):
        WorkerOptions(model=tmp_path, api_key="")
    assert KEY not in repr(WorkerOptions(model=tmp_path, api_key=KEY))
