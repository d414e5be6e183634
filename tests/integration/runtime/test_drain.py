"""The end of a serving gateway: how long requests may go on that aiohttp's server has and that do not end."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web

from gateway.process.drain_state import DrainState
from gateway.runtime.drain import drain
from gateway.runtime.listener_runner import listener_runner

LONGER_THAN_THE_TEST = 600.0
ENDS_WITHIN_SECONDS = 30.0


@asynccontextmanager
async def request_that_does_not_end(drain_state):
    """Yield the runner of a listener with a request under way, and an event that is set when it was cancelled."""
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def never_answer(http):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    app = web.Application()
    app.router.add_get("/", never_answer)
    # aiohttp waits this long, and once more for what it has cancelled.
    runner = listener_runner(app, lambda *_: web.Response(), drain_seconds=LONGER_THAN_THE_TEST)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as client:
        request = asyncio.create_task(client.get(f"http://127.0.0.1:{runner.addresses[0][1]}/"))
        await begun.wait()
        yield runner, cancelled
        await asyncio.gather(request, return_exceptions=True)


def serving_gateway(runner, drain_state, *, seconds):
    """Return the parts of a serving gateway that drain uses."""

    def stop_accepting():
        drain_state.ready = drain_state.accepting = False

    gateway = SimpleNamespace(
        drain_state=drain_state,
        stop_accepting=stop_accepting,
        settings=SimpleNamespace(drain=SimpleNamespace(seconds=seconds)),
    )
    return SimpleNamespace(
        gateway=gateway,
        runner=runner,
        endpoint_picker=None,
        batch_claimer=None,
        background_responses=None,
    )


@pytest.mark.parametrize(
    ("seconds", "second_signal"),
    [(0.1, False), (LONGER_THAN_THE_TEST, True)],
    ids=["time over", "second signal"],
)
async def test_a_request_of_aiohttps_server_is_cancelled_when_the_time_to_drain_is_over(
    seconds, second_signal
):
    at_once, drain_state = asyncio.Event(), DrainState()
    if second_signal:
        at_once.set()
    async with request_that_does_not_end(drain_state) as (runner, cancelled):
        here = serving_gateway(runner, drain_state, seconds=seconds)
        async with asyncio.timeout(ENDS_WITHIN_SECONDS):
            await drain(here, at_once, notice_seconds=0.0)
            await runner.cleanup()
        assert cancelled.is_set()
