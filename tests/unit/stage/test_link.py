"""The link between gateways and Valkey, which can be slow, cut and down."""

import asyncio

import pytest

from tests.stage.link import Link


@pytest.fixture
async def link(tmp_path):
    """To a server that sends back what it gets."""

    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    server = await asyncio.start_unix_server(echo, tmp_path / "far")
    made = Link(tmp_path / "near", tmp_path / "far")
    await made.open()
    yield made
    await made.close()
    server.close()


async def connected(link):
    return await asyncio.open_unix_connection(link._near)


async def test_what_passes_a_link_stays_in_order_when_it_becomes_fast(link):
    reader, writer = await connected(link)
    link.delay_seconds = 0.05
    writer.write(b"first ")
    await asyncio.sleep(0.02)
    link.delay_seconds = 0.0
    writer.write(b"second")
    assert await asyncio.wait_for(reader.readexactly(12), 60) == b"first second"
    writer.close()


async def test_a_link_that_is_cut_ends_connections_and_takes_new_ones_unless_it_is_down(link):
    reader, writer = await connected(link)
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    link.cut()
    assert await asyncio.wait_for(reader.read(), 60) == b""
    again, other = await connected(link)
    other.write(b"y")
    assert await asyncio.wait_for(again.readexactly(1), 60) == b"y"
    link.up = False
    refused, third = await connected(link)
    assert await asyncio.wait_for(refused.read(), 60) == b""
    for each in (writer, other, third):
        each.close()
