"""A response whose client leaves: however its work ends then, no failure is logged."""

import asyncio
import gc
from types import SimpleNamespace

import pytest

from gateway.web.responses.exchange import serve_detachable


async def written(meanwhile):
    """Work that finds its client gone, by being cancelled or before."""
    try:
        await meanwhile.wait()
    finally:
        raise ConnectionResetError("Cannot write to closing transport")


@pytest.mark.parametrize("before", [True, False], ids=["it had failed before", "it fails when it is ended"])
async def test_a_client_that_leaves_is_no_error_in_the_log(before):
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    meanwhile, exchange = asyncio.Event(), SimpleNamespace(detached=asyncio.Event(), background=None)
    work = asyncio.create_task(written(meanwhile))
    handler = asyncio.create_task(serve_detachable(exchange, work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if before:
        meanwhile.set()
        work.add_done_callback(lambda _: handler.cancel())
    else:
        handler.cancel()
    await asyncio.wait([handler])
    assert handler.cancelled()
    assert work.done()
    work = handler = None
    gc.collect()
    assert complaints == []


async def test_a_client_that_stays_gets_the_failure():
    meanwhile, exchange = asyncio.Event(), SimpleNamespace(detached=asyncio.Event(), background=None)
    meanwhile.set()
    with pytest.raises(ConnectionResetError):
        await serve_detachable(exchange, asyncio.create_task(written(meanwhile)))
