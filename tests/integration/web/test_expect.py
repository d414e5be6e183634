"""Expect: 100-continue: the body is asked for when it is read, and not before."""

import asyncio
import json

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nsound\r\n--b--\r\n'
)


async def first_lines(running, path, *, key=None, size=None, body=BODY, content_type="application/json"):
    """Return the status lines that arrive; the body is sent only once it is asked for."""
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    key = running.headers()["Authorization"] if key is None else key
    writer.write(
        f"POST /v1/{path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {key}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {size or len(body)}\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    async with asyncio.timeout(60):
        lines = [(await reader.readline()).split()[1]]
        if lines == [b"100"]:
            assert await reader.readline() == b"\r\n"
            writer.write(body)
            lines.append((await reader.readline()).split()[1])
    writer.close()
    return lines


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
async def test_the_body_is_asked_for_once_key_and_length_are_accepted(gateway, path):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        assert await first_lines(running, path, key="Bearer rg-wrong") == [b"401"]
        assert await first_lines(running, path, size=10**9) == [b"413"]
        lines = await first_lines(running, path)
        assert (lines[0], len(lines)) == (b"100", 2)


async def test_a_chat_goes_on_after_its_body_was_asked_for(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        assert await first_lines(running, "chat/completions") == [b"100", b"200"]


async def test_a_form_is_asked_for_too(gateway):
    form = {"content_type": "multipart/form-data; boundary=b", "body": FORM}
    async with ScriptedWorker() as worker, gateway(worker) as running:
        path = "audio/transcriptions"
        assert await first_lines(running, path, key="Bearer rg-wrong", size=len(FORM), **form) == [b"401"]
        assert await first_lines(running, path, size=10**9, **form) == [b"413"]
        assert (await first_lines(running, path, size=len(FORM), **form))[0] == b"100"
