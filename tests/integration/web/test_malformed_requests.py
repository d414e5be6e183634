"""Malformed requests: a gateway on its real listener answers whatever bytes a client sends.

It never fails (500), never shows a traceback, and refuses in the API's own shape.
"""

import asyncio
import json
import re
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.runtime.server import serving
from gateway.settings.sources import load_settings
from gateway.tenants.keys import new_key, pepper
from tests.fakes.scripted_worker import ScriptedWorker

SECRET = "a secret of the front door"
FUZZ = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
PATIENCE = 20.0
BRIEFLY = 0.5
"""For what may never be a whole request; then there is no answer, which is right too."""


class Door:
    """A gateway in a thread of its own. `died`: what its loop could not bear."""

    def __init__(self, valkey_url):
        self.key = new_key(pepper(SECRET.encode()))
        self.died = []
        self._valkey_url = valkey_url
        self._started, self._stop = threading.Event(), None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def open(self):
        self._thread.start()
        assert self._started.wait(PATIENCE)

    def close(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)

    def ask(self, data, patience=PATIENCE):
        """Bytes to the door; everything that comes back until it closes, or until patience ends."""
        parts = []
        with socket.create_connection(("127.0.0.1", self.port), timeout=patience) as caller:
            with suppress(ConnectionError, TimeoutError):
                caller.sendall(data)
                while part := caller.recv(65536):
                    parts.append(part)
        return b"".join(parts)

    async def _run(self):
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda _, context: self.died.append(context))
        with tempfile.TemporaryDirectory() as state:
            async with ScriptedWorker() as worker:
                tree = {
                    "listen.port": "0",
                    "admin.port": "0",
                    "redis.url": self._valkey_url,
                    "redis.prefix": "front-door",
                    "state_directory": str(Path(state)),
                    "database.url": "none",
                    "deployment_secret": SECRET,
                    "requests.body_seconds_max": "0.2",
                    "workers": json.dumps([{"id": "w", "kind": "sglang", "url": worker.url}]),
                    "tenants": json.dumps(
                        [{"id": "acme", "keys": [{"id": self.key.id, "hash": self.key.hash}]}]
                    ),
                }
                loaded = load_settings(None, {}, [f"{name}={value}" for name, value in tree.items()])
                async with serving(loaded) as here:
                    self.port = int(here.tenant_url.rpartition(":")[2])
                    while [w.health.state.value for w in here.gateway.fleet] != ["up"]:
                        await asyncio.sleep(0.01)
                    self._started.set()
                    await self._stop.wait()


@pytest.fixture(scope="module")
def door(valkey):
    made = Door(valkey.url)
    made.open()
    yield made
    made.close()


def request(door, body, *headers, path=b"/v1/chat/completions", method=b"POST"):
    lines = [
        method + b" " + path + b" HTTP/1.1",
        b"Host: door",
        b"Content-Length: %d" % len(body),
        b"Connection: close",
        b"Authorization: Bearer " + door.key.text.encode(),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def check(answer):
    """Every answer is whole, no failure of the gateway, and an error only in the API's shape. Its status."""
    assert b"Traceback" not in answer
    status = int(answer.split(b" ", 2)[1])
    assert status < 500 or status in (502, 503), answer
    head, _, body = answer.partition(b"\r\n\r\n")
    if status >= 400:
        assert b"content-type: application/json" in head.lower(), answer
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert error["code"] != "internal_error"
    return status


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "m", "user", "data:", "http://h/x", "\x00", "\ud83d\ude00", "rg-x", "*"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "image_url", "url", "uuid", "x"]), inner, max_size=4
        ),
    ),
    max_leaves=12,
)  # fmt: skip
FIELDS = [
    *("model", "messages", "stream", "stream_options", "n", "best_of", "max_tokens", "max_completion_tokens"),
    *("temperature", "tools", "tool_choice", "response_format", "logprobs", "top_logprobs", "stop", "seed"),
    *("cache_salt", "priority", "rid", "chat_template_kwargs", "logit_bias", "metadata", "user", "prompt"),
]
GOOD = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
fields = st.dictionaries(st.sampled_from(FIELDS), values, max_size=5)


@FUZZ
@given(fields)
def test_a_good_request_with_any_of_its_fields_changed_is_answered_or_refused(door, changed):
    body = json.dumps({**GOOD, **changed}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert check(door.ask(request(door, body))) in (200, 400, 404)


@FUZZ
@given(fields)
def test_completions_are_no_weaker(door, changed):
    body = json.dumps({"model": "m", "prompt": "hi", **changed}).encode("utf-8", "surrogatepass")
    assert check(door.ask(request(door, body, path=b"/v1/completions"))) in (200, 400, 404)


@FUZZ
@given(st.integers(0, 80), st.integers(0, 10), st.binary(max_size=10))
def test_a_body_with_some_of_its_bytes_exchanged_is_answered_or_refused(door, at, size, other):
    text = json.dumps(GOOD).encode()
    assert check(door.ask(request(door, text[:at] + other + text[at + size :]))) in (200, 400, 404)


NAMES = b"""Authorization x-api-key Content-Type Content-Encoding Expect Transfer-Encoding Content-Length Host
traceparent X-Forwarded-For Cookie Upgrade Range TE Connection""".split()
CONTENTS = [
    *(b"chunked", b"gzip", b"100-continue", b"Bearer ", b"Bearer \xff", b"websocket", b"-1", b"9" * 30, b"0"),
    *(b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01", b"::1", b"a.b.c", b"\x00", b"close"),
]
names = st.one_of(st.sampled_from(NAMES), st.binary(min_size=1, max_size=8))
contents = st.one_of(st.sampled_from(CONTENTS), st.binary(max_size=20))


@FUZZ
@given(st.lists(st.tuples(names, contents), max_size=4))
def test_any_headers_are_borne(door, headers):
    lines = [name + b": " + content for name, content in headers]
    answer = door.ask(request(door, json.dumps(GOOD).encode(), *lines), BRIEFLY)
    # Where fewer bytes are announced than come, each request found in them is answered.
    for one in re.split(rb"(?=HTTP/1\.[01] [1-5])", answer)[1:]:
        assert not one.split(b" ")[1].startswith(b"5")
        if one.split(b" ")[1].startswith(b"4"):
            check(one)


@FUZZ
@given(st.sampled_from([b"GET", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"HEAD", b"X"]), st.text(max_size=20))
def test_any_path_is_there_or_not(door, method, path):
    address = b"/" + path.encode("utf-8", "surrogatepass")
    if any(byte <= 32 for byte in address):
        address = b"/x"
    answer = door.ask(request(door, b"", path=address, method=method))
    if method != b"HEAD":
        assert check(answer) in (200, 400, 401, 404, 405)


@FUZZ
@given(st.binary(max_size=60))
def test_what_is_no_http_gets_an_answer_or_none(door, data):
    answer = door.ask(data + b"\r\n\r\n", BRIEFLY)
    if answer:
        assert check(answer) in (400, 404, 405)


def test_nothing_has_died_meanwhile(door):
    assert check(door.ask(request(door, json.dumps(GOOD).encode()))) == 200
    assert door.died == []
