"""Background loops: restarted when they crash, and cancelled until they have ended."""

import asyncio

from gateway.concurrency.loop_supervisor import LoopSupervisor


async def test_a_loop_that_crashes_is_started_again(monkeypatch):
    monkeypatch.setattr("gateway.concurrency.loop_supervisor.RESTART_SECONDS", (0.0,))
    runs = []

    async def crashes_twice():
        runs.append(1)
        if len(runs) < 3:
            raise RuntimeError("again")
        await asyncio.sleep(60)

    supervisor = LoopSupervisor()
    supervisor.start("loop", crashes_twice)
    async with asyncio.timeout(60):
        while len(runs) < 3:
            await asyncio.sleep(0)
    assert supervisor.loops["loop"].restarts == 2
    await supervisor.close()


async def test_a_loop_that_was_woken_in_the_moment_it_was_cancelled_is_cancelled_again(monkeypatch):
    """asyncio.wait_for of Python 3.11 loses a cancellation that comes with what it waits for."""
    monkeypatch.setattr("gateway.concurrency.loop_supervisor.AGAIN_SECONDS", 0.01)
    bell, rounds = asyncio.Event(), []

    async def waits_for_a_bell():
        while True:
            rounds.append(1)
            bell.clear()
            try:
                await asyncio.wait_for(bell.wait(), 60)
            except TimeoutError:
                continue

    supervisor = LoopSupervisor()
    supervisor.start("loop", waits_for_a_bell)
    await asyncio.sleep(0.01)
    bell.set()
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await supervisor.close()
    assert len(rounds) <= 2
