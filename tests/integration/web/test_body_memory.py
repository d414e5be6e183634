"""Bodies of every shape, sent at once, leave a gateway process within the memory of its container."""

import asyncio
import random
import resource
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.processes import GatewayProcess

CONTAINER_BYTES = 1024**3
"""The memory limit of the Helm chart."""
BESIDE_INDEX_BYTES = CONTAINER_BYTES // 2
"""What the chart's share for the index leaves, with the caches that it follows and what Redis does not have yet."""
AT_ONCE = 3
"""Requests with the same body: more than `listen.memory_bytes_max` lets in at one time."""
TEXT_BYTES = 24_000_000
"""Of a body that is a single text."""
TOO_MANY_BYTES = 5_000_000
"""Of a body with more values than a request may have."""


def chat(fields=b"", extra=b""):
    return b'{"model":"m","messages":[{"role":"user","content":"hi"%b}]%b}' % (fields, extra)


def peak_bytes(pid):
    """Return the most memory that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def many(each, count):
    """Return so many different pieces, with a comma before each."""
    return b"".join([b"," + each % number for number in range(count)])


def too_many(each):
    """Return pieces of TOO_MANY_BYTES, with a comma before each; they begin anew after 10,000."""
    block = many(each, 10_000)
    return block * (TOO_MANY_BYTES // len(block))


SHAPES = {
    "top-level keys": ("chat/completions", b'"k%d":1', 400, lambda x: chat(extra=x)),
    "keys of a message": ("chat/completions", b'"k%d":1', 190_000, chat),
    "strings": ("chat/completions", b'"s%d"', 300_000, lambda x: chat(b',"x":[""%b]' % x)),
    "numbers": ("chat/completions", b"1.%d0000000", 700_000, lambda x: chat(b',"x":[0%b]' % x)),
    "objects": ("chat/completions", b'{"a":%d}', 95_000, lambda x: chat(b',"x":[{}%b]' % x)),
    "token ids": ("completions", b"1%06d", 1_500_000, lambda x: b'{"model":"m","prompt":[0%b]}' % x),
    "lists of token ids": (
        "completions",
        b"[1%d" + b",1" * 900 + b"]",
        2000,
        lambda x: b'{"model":"m","prompt":[[0]%b]}' % x,
    ),
    "many keys of messages": (
        "messages",
        b'"k%d":{}',
        95_000,
        lambda x: b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}]%b}' % x,
    ),
    "items": (
        "responses",
        b'{"role":"user","content":"%d"}',
        95_000,
        lambda x: b'{"model":"m","input":[{"role":"user","content":"a"}%b]}' % x,
    ),
}
"""By name: the API, a piece of the body, how many of them a request may have, and the body around them."""

TEXTS = {
    "text": chat(b',"x":"%b"' % (b"a b, {c: d} " * (TEXT_BYTES // 12))),
    "backslashes": chat(b',"x":"%b"' % (b"\\\\" * (TEXT_BYTES // 2))),
}


@pytest.fixture
async def limited(tmp_path, valkey):
    """Start a gateway that gets no more memory than its container has, before a scripted worker."""
    async with ScriptedWorker() as worker, aiohttp.ClientSession() as http:
        settings = {
            "redis": {"url": valkey.url, "prefix": tmp_path.name.replace("_", "-")[-40:]},
            "database": {"url": "none"},
            "drain": {"notice_seconds": 0},
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

    async def all_is_well(name):
        assert peak_bytes(gateway.pid) < BESIDE_INDEX_BYTES, name
        assert await status("chat/completions", chat()) == 200, name

    async def at_once(name, path, body):
        statuses = await asyncio.gather(*(status(path, body) for _ in range(AT_ONCE)))
        assert set(statuses) <= {200, 400, 503}, name
        await all_is_well(name)

    names = [*SHAPES]
    random.Random(7).shuffle(names)
    for name in names:
        path, piece, count, around = SHAPES[name]
        await at_once(name, path, around(many(piece, count)))
        assert await status(path, around(too_many(piece))) in (200, 400, 503), name
        await all_is_well(name)
    for name, body in TEXTS.items():
        await at_once(name, "chat/completions", body)
