"""A body from Envoy: in order, bounded, and ended by its last piece or by an error."""

import asyncio

import pytest

from gateway.endpoint_picker.buffered_body import UNREAD_BYTES_MAX, BufferedBody


async def test_what_is_there_is_read_together_until_the_end():
    body = BufferedBody()
    body.put(b"a", last=False)
    body.put(b"b", last=True)
    assert not body.complete
    assert await body.readany() == b"ab"
    assert body.complete
    assert await body.readany() == b""


async def test_a_reader_waits_for_the_next_piece():
    body = BufferedBody()
    reading = asyncio.create_task(body.readany())
    await asyncio.sleep(0)
    assert not reading.done()
    body.put(b"a", last=False)
    assert await reading == b"a"


async def test_the_writer_waits_while_too_much_is_unread():
    body = BufferedBody()
    body.put(bytes(UNREAD_BYTES_MAX), last=False)
    await asyncio.wait_for(body.wait_for_room(), 60)
    body.put(b"a", last=False)
    waiting = asyncio.create_task(body.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert len(await body.readany()) == UNREAD_BYTES_MAX + 1
    await asyncio.wait_for(waiting, 60)


async def test_an_error_comes_after_the_pieces_that_have_arrived_and_frees_the_writer():
    body = BufferedBody()
    body.put(bytes(UNREAD_BYTES_MAX + 1), last=False)
    body.fail(OSError("gone"))
    await asyncio.wait_for(body.wait_for_room(), 60)
    assert len(await body.readany()) == UNREAD_BYTES_MAX + 1
    with pytest.raises(OSError, match="gone"):
        await body.readany()
