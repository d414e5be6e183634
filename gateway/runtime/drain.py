"""The end of a serving gateway: running requests may go on for a time, and new ones are refused.

    SIGTERM -> not ready, `drain.notice_seconds` -> new requests refused, at most `drain.seconds` -> all cancelled

A second signal ends the notice and the wait at once.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from gateway.runtime.serving_gateway import ServingGateway

log = logging.getLogger(__name__)


async def drain(here: ServingGateway, at_once: asyncio.Event, *, notice_seconds: float) -> None:
    """Refuse new requests after the notice, and wait for the running ones; cancel those that are left.

    Args:
        here: The gateway; it still serves.
        at_once: Ends the notice and the wait.
        notice_seconds: How long it reports that it is not ready, and serves new requests all the same: load
            balancers need this time to notice.
    """
    running_count = len(here.gateway.drain_state.requests)
    if running_count or notice_seconds:
        log.warning(
            "stopping: notice of %g s, then at most %g s for %d running request%s; a second signal ends it at once",
            *(notice_seconds, here.gateway.settings.drain.seconds),
            *(running_count, "" if running_count == 1 else "s"),
        )
    here.gateway.drain_state.ready = False
    await _unless(at_once, asyncio.sleep(notice_seconds))
    here.gateway.stop_accepting()
    await _unless(at_once, _wait_for_work(here))
    here.gateway.drain_state.cancel_requests()


async def _wait_for_work(here: ServingGateway) -> None:
    """Wait up to `drain.seconds` for running requests of clients, rows of batches and background responses.

    For requests of clients this time was given to the runner when it was made: its cleanup closes the listener, and
    waits for them, streams included.
    """
    seconds = here.gateway.settings.drain.seconds
    async with asyncio.TaskGroup() as drains:
        drains.create_task(here.runner.cleanup())
        if here.endpoint_picker is not None:
            drains.create_task(here.endpoint_picker.drain(seconds))
        for background in (here.batch_claimer, here.background_responses):
            if background is not None:
                drains.create_task(background.drain(seconds))


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, or abandon it when the event comes first."""
    task, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    for unfinished in (task, waiting):
        unfinished.cancel()
    await asyncio.gather(task, waiting, return_exceptions=True)
