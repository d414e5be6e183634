"""Clients that hold connections: a bound for each address, and an end for connections without whole requests."""

import asyncio
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.runtime import listener_runner
from gateway.settings.types import Network, address_of
from gateway.web.middleware.connection_limits import ConnectionLimiter
from tests.fakes.scripted_worker import ScriptedWorker


async def connected(running):
    host, port = running.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def asked(reader, writer, running):
    """One request on a connection: its status, and its error's code if it is one."""
    key = running.headers()["Authorization"]
    writer.write(f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\n\r\n".encode())
    async with asyncio.timeout(60):
        status = int((await reader.readline()).split()[1])
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = [
            line for line in head.decode().lower().split("\r\n") if line.startswith("content-length")
        ]
        body = json.loads(await reader.readexactly(int(length.split(":")[1])))
    return status, body.get("error", {}).get("code")


@pytest.mark.any_loop
async def test_an_address_has_so_many_connections_and_gets_others_when_it_closes_some(gateway):
    settings = {"listen.connections_per_address_max": "3"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        held = [await connected(running) for _ in range(3)]
        assert [await asked(*each, running) for each in held] == [(200, None)] * 3
        reader, writer = await connected(running)
        assert await asked(reader, writer, running) == (429, "too_many_connections")
        assert await reader.read() == b""
        # Those that were there go on, and one that goes makes room.
        assert await asked(*held[1], running) == (200, None)
        held[0][1].close()
        async with asyncio.timeout(60):
            while True:
                reader, writer = await connected(running)
                if await asked(reader, writer, running) == (200, None):
                    break
                writer.close()
        for _, each in [*held, (reader, writer)]:
            each.close()


async def test_connections_of_a_trusted_proxy_have_no_bound(gateway):
    settings = {"listen.connections_per_address_max": "1", "listen.trusted_proxies": '["127.0.0.0/8"]'}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        held = [await connected(running) for _ in range(5)]
        assert [await asked(*each, running) for each in held] == [(200, None)] * 5
        for _, writer in held:
            writer.close()


async def test_headers_that_come_byte_by_byte_do_not_keep_a_connection(gateway, monkeypatch):
    monkeypatch.setattr(listener_runner, "KEEPALIVE_SECONDS", 0.3)
    async with ScriptedWorker() as worker, gateway(worker) as running:
        reader, writer = await connected(running)
        ended = asyncio.create_task(reader.read())
        for byte in b"GET /v1/models HTTP/1.1\r\nX: " + b"y" * 200:
            if ended.done():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)
        async with asyncio.timeout(60):
            # A byte that crosses the end of the connection is answered with a reset.
            with suppress(ConnectionResetError):
                assert await ended == b"" or (await ended).startswith(b"HTTP/1.1 4")
        writer.close()


CALLERS = ["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2", "::1"]


@given(st.lists(st.tuples(st.sampled_from(CALLERS), st.booleans())))
def test_what_is_counted_is_what_is_open(steps):
    """Against a plain list of what is open; 2001:db8::1 and ::2 are one customer, ::1 is trusted."""
    at = ConnectionLimiter(2, (Network("::1"),))
    held = []
    for text, coming in steps:
        address = address_of(text)
        customer = "2001:db8::" if text.startswith("2001") else text
        if not coming:
            if (text, customer) in held:
                held.remove((text, customer))
                at.leave(address)
            continue
        room = text == "::1" or sum(each == customer for _, each in held) < 2
        assert at.enter(address) is room
        if room:
            held.append((text, customer))
    assert len(at) == len({customer for _, customer in held})
