"""Bodies of every shape, sent at once, leave a gateway process within the memory of its container."""

import asyncio
import random
import resource

import aiohttp
import pytest

from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.processes import GatewayProcess, resident_bytes

CONTAINER_BYTES = 1024**3
"""The memory limit of the Helm chart."""
BODY_BYTES = 24_000_000


def chat(fields=b"", extra=b""):
    return b'{"model":"m","messages":[{"role":"user","content":"hi"%b}]%b}' % (fields, extra)


def filled(first, each):
    """Return so many pieces that they make a long body, with a comma before each but the first."""
    pieces, size, number = [first], 0, 0
    while size < BODY_BYTES:
        pieces.append(each % number)
        size += len(pieces[-1]) + 1
        number += 1
    return b",".join(pieces)


SHAPES = {
    "top-level keys": ("chat/completions", lambda: chat(extra=filled(b"", b'"k%d":1'))),
    "keys of a message": ("chat/completions", lambda: chat(filled(b"", b'"k%d":1'))),
    "strings": ("chat/completions", lambda: chat(b',"x":[%b]' % filled(b'""', b'"s%d"'))),
    "numbers": ("chat/completions", lambda: chat(b',"x":[%b]' % filled(b"0", b"1.%d0000000"))),
    "objects": ("chat/completions", lambda: chat(b',"x":[%b]' % filled(b"{}", b'{"a":%d}'))),
    "token ids": ("completions", lambda: b'{"model":"m","prompt":[%b]}' % filled(b"0", b"1%06d")),
    "lists of token ids": ("completions", lambda: b'{"model":"m","prompt":[%b]}' % filled(b"[0]", b"[1%d]")),
    "text": ("chat/completions", lambda: chat(b',"x":"%b"' % (b"a b, {c: d} " * (BODY_BYTES // 12)))),
    "backslashes": ("chat/completions", lambda: chat(b',"x":"%b"' % (b"\\\\" * (BODY_BYTES // 2)))),
    "many keys of messages": (
        "messages",
        lambda: (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}]%b}'
            % filled(b"", b'"k%d":{}')
        ),
    ),
    "items": (
        "responses",
        lambda: (
            b'{"model":"m","input":[%b]}'
            % filled(b'{"role":"user","content":"a"}', b'{"role":"user","content":"%d"}')
        ),
    ),
}


@pytest.fixture
async def limited(tmp_path, valkey):
    """Start a gateway that gets no more memory than its container has, before a scripted worker."""
    async with ScriptedWorker() as worker, aiohttp.ClientSession() as http:
        settings = {
            "redis": {"url": valkey.url, "prefix": tmp_path.name.replace("_", "-")[-40:]},
            "database": {"url": "none"},
            "deployment_secret": "a secret of the tests",
            "workers": [{"id": "w0", "kind": "sglang", "url": worker.url}],
        }
        gateway = GatewayProcess("gateway", tmp_path, settings)
        await gateway.start()
        await gateway.all_up(http)
        resource.prlimit(gateway.pid, resource.RLIMIT_DATA, (CONTAINER_BYTES, CONTAINER_BYTES))
        yield gateway, http
        await gateway.stop()


async def test_bodies_of_every_shape_leave_the_gateway_within_its_memory(limited):
    gateway, http = limited
    url = f"http://127.0.0.1:{gateway.port}/v1"

    async def status(path, body):
        async with http.post(f"{url}/{path}", data=body) as answer:
            await answer.read()
            assert answer.status != 503 or float(answer.headers["retry-after"]) > 0
            return answer.status

    shapes = list(SHAPES)
    random.Random(7).shuffle(shapes)
    for shape in shapes:
        path, new_body = SHAPES[shape]
        body = new_body()
        statuses = await asyncio.gather(*(status(path, body) for _ in range(6)))
        assert set(statuses) <= {200, 400, 503}, shape
        assert resident_bytes(gateway.pid) < CONTAINER_BYTES // 4, shape
        assert await status("chat/completions", chat()) == 200, shape
