"""The notifications of changes of the worker registry."""

import asyncio

from gateway.discovery.worker_registry import RegistryChanges


async def test_a_wait_that_is_cancelled_as_a_change_arrives_ends_all_the_same():
    changes = RegistryChanges()
    waiting = asyncio.create_task(changes.wait(0, 60.0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    changes.notify()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


async def test_a_wait_for_changes_ends_after_its_seconds():
    await RegistryChanges().wait(0, 0.001)
