"""The watch over a client that does not read its answer."""

import asyncio
from types import SimpleNamespace

import pytest

from gateway.web.unread_watch import UnreadWatch


@pytest.fixture
def client():
    aborted = asyncio.Event()
    return SimpleNamespace(transport=SimpleNamespace(abort=aborted.set), aborted=aborted)


async def test_the_connection_of_a_client_that_reads_nothing_is_aborted(client):
    watch = UnreadWatch(client, 0.01)
    writing = asyncio.ensure_future(watch.wait(asyncio.get_running_loop().create_future()))
    await asyncio.wait_for(client.aborted.wait(), 60)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    watch.close()


async def test_a_client_that_reads_in_time_keeps_its_connection(client):
    watch = UnreadWatch(client, 0.01)
    for _ in range(3):
        read = asyncio.get_running_loop().create_future()
        read.set_result(None)
        await watch.wait(read)
        await asyncio.sleep(0.02)
    assert not client.aborted.is_set()
    watch.close()
