"""The end of a serving gateway: running requests may continue for a time, and new ones are refused.

    SIGTERM -> not ready, `drain.notice_seconds` -> new requests refused, at most `drain.seconds` -> all cancelled

A second signal ends the notice and the wait at once.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from gateway.runtime.serving_gateway import ServingGateway

log = logging.getLogger(__name__)

CANCELLED_SECONDS_MAX = 5.0
"""How long requests that were cancelled may take to end, before their connections are closed."""


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
    await _do_until(at_once, asyncio.sleep(notice_seconds))
    here.gateway.stop_accepting()
    await _do_until(at_once, _close_and_wait(here))
    here.gateway.drain_state.cancel_requests()
    await here.gateway.drain_state.wait_for_requests(CANCELLED_SECONDS_MAX)
    await here.runner.close_connections()


async def _close_and_wait(here: ServingGateway) -> None:
    """Close the listeners, and wait up to `drain.seconds` for requests, rows of batches and background responses.

    Requests of clients, streams included, are waited for as the runner of their listener stops: first by
    `wait_before_aiohttp_closes` of gateway/web/tenant_app.py for all inference requests, then by aiohttp for the
    others on its connections, such as uploads of files.
    """
    seconds = here.gateway.settings.drain.seconds
    async with asyncio.TaskGroup() as drains:
        drains.create_task(here.runner.stop(seconds))
        if here.endpoint_picker is not None:
            drains.create_task(here.endpoint_picker.drain(seconds))
        for background in (here.batch_claimer, here.background_responses):
            if background is not None:
                drains.create_task(background.drain(seconds))


async def _do_until(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, or abandon it when the event comes first."""
    task, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    for unfinished in (task, waiting):
        unfinished.cancel()
    await asyncio.gather(task, waiting, return_exceptions=True)
