"""Requests leave no reference cycles: the gateway collects them seldom, and until then they take memory."""

import asyncio
import gc
import sys
from collections import Counter

from tests.fakes.scripted_worker import Script, ScriptedWorker

OURS = ("gateway", "policies", "radix_cache", "workers")
LIMITS = [{"requests": 10_000, "per": "day"}]
TIMES = 5


async def read(request):
    async with request as response:
        await response.read()
        return response.status


async def hung_up(request):
    """Left in the middle of its answer."""
    async with request as response:
        await response.content.readany()
        response.close()
        return response.status


def asked(running, kind):
    if kind == "unknown key":
        return read(running.http.post(running.url + "/v1/chat/completions", headers={"x-api-key": "no"}))
    if kind == "unknown model":
        return read(running.chat(model="unknown"))
    if kind == "left":
        return hung_up(running.chat(stream=True))
    return read(running.chat(stream=kind != "answered"))


ENDS = {
    "answered": {200},
    "streamed": {200},
    "unknown key": {401},
    "unknown model": {404},
    "left": {200},
    "broken": {200},
    "dropped": {502, 503},
    "busy": {503},
    "refused": {400},
}
SCRIPTS = {
    "left": {"gap": 0.02, "tokens": 100},
    "broken": {"break_after": 2},
    "dropped": {"break_after": 0},
    "busy": {"status": 503, "body": {}},
    "refused": {"status": 400, "body": {"error": {"message": "no"}}},
}


def collect_what_earlier_tests_left(monkeypatch):
    """Collect the garbage of earlier tests, whose complaints are not about this one."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda unraisable: None)
        gc.collect()


async def test_a_request_leaves_no_circles_behind_however_it_ends(gateway, monkeypatch):
    collect_what_earlier_tests_left(monkeypatch)
    left: dict[str, dict[str, int]] = {}
    async with ScriptedWorker() as worker, gateway(worker, limits=LIMITS) as running:
        for kind in ENDS:
            worker.script = Script(**SCRIPTS.get(kind, {}))
            await running.until(lambda: running.here.gateway.services.dispatch.fleet.serving("m"))
            left[kind] = await left_by(lambda kind=kind: asked_and_ended(running, kind))
    assert left == {kind: {} for kind in left}


async def asked_and_ended(running, kind):
    assert await asked(running, kind) in ENDS[kind]
    await running.until(lambda: running.idle)
    await asyncio.sleep(0.01)


async def left_by(ask):
    """What of ours waits for the collector after each time."""
    await ask()
    gc.collect()
    gc.freeze()  # The next collection looks only at what comes from here on.
    gc.disable()
    try:
        for _ in range(TIMES):
            await ask()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(name for each in gc.garbage if (name := name_of(each)).startswith(OURS))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    return {name: count for name, count in found.items() if count >= TIMES}


def name_of(thing):
    named = thing if hasattr(thing, "__qualname__") and hasattr(thing, "__module__") else type(thing)
    return f"{named.__module__}.{named.__qualname__}"


ONE_AT_A_TIME = {"queueing.release_window_tokens": "1", "queueing.within": "fcfs"}
WAITING = 3


async def test_requests_that_enter_the_queue_again_leave_no_cycles_behind(gateway):
    """Else all requests that wait stay in memory when the shared queue is lost under load."""
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **ONE_AT_A_TIME) as running,
        gateway(worker, **ONE_AT_A_TIME),  # Only among several gateways is the queue shared.
    ):
        dispatch = running.here.gateway.services.dispatch
        membership = dispatch.queue.only_membership

        async def enter_again():
            await running.until(lambda: dispatch.queue.shared)
            release = asyncio.Event()
            worker.then(until=release)
            calls = [asyncio.create_task(read(running.chat(stream=True))) for _ in range(1 + WAITING)]
            # First of the shared queue's waits, then of those in this gateway, which end when it is back.
            await running.until(lambda: len(dispatch.rooms.of("m")) == WAITING)
            membership.go_away("for once")
            await running.until(lambda: len(dispatch.rooms.of("m").waiters) == WAITING)
            await running.until(lambda: dispatch.queue.shared)
            release.set()
            assert await asyncio.gather(*calls) == [200] * (1 + WAITING)
            await running.until(lambda: running.idle)
            await asyncio.sleep(0.01)

        assert await left_by(enter_again) == {}
