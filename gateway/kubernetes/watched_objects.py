"""Objects of a cluster that are listed once and then watched.

    list --> watch --each change--> the objects are up to date
     ^         |-- ended, broken off -----> watch again, from the last version that was seen
     +---------+-- version gone, garbage -> list again

Failures are followed by pauses that grow. Where the service account may only list, objects are listed at intervals.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Generic, TypeVar

from gateway.kubernetes.api import (
    OBJECTS_MAX,
    KubernetesApi,
    KubernetesUnavailable,
    ObjectChange,
    ObjectWatch,
    SelectedObjects,
    WatchExpired,
    WatchRefused,
)
from gateway.kubernetes.objects import NamedObject

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 30.0
SHORT_SECONDS = 5.0
"""A watch that ends sooner counts as a failure, so that it is not opened all the time."""

Read = TypeVar("Read", bound=NamedObject)


class WatchedObjects(Generic[Read]):
    """The objects of a selection, kept up to date by one task that calls `find` and `wait` in turns.

    Args:
        api: the API of the cluster.
        selection: which objects.
        name: what the objects are for, in logs.
        every_seconds: how often they are listed where they may not be watched.
        clock: returns monotonic time in seconds.
    """

    def __init__(
        self,
        api: KubernetesApi,
        selection: SelectedObjects[Read],
        *,
        name: str,
        every_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._selection = selection
        self._name = name
        self._every_seconds = every_seconds
        self._clock = clock
        self._objects: dict[str, Read] | None = None
        """The objects as they were at `_version`; None: they must be listed."""
        self._version = ""
        self._watch: ObjectWatch[Read] | None = None
        self._watched_since = 0.0
        self._may_watch = True
        self._problem = ""
        """Why changes are not seen; empty if they are."""
        self._failures = 0

    async def find(self) -> Mapping[str, Read]:
        """Return all objects by name. Raises KubernetesUnavailable."""
        if self._objects is None:
            try:
                self._objects, self._version = await self._api.list(self._selection)
            except KubernetesUnavailable:
                self._failures += 1
                raise
            self._problem = ""
        if self._problem:
            raise KubernetesUnavailable(self._problem)
        return self._objects

    async def wait(self) -> None:
        """Wait until the objects have changed, or whether they have is not known any more."""
        if self._failures and self._watch is None:
            longest = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 10))
            await asyncio.sleep(longest * random.uniform(0.5, 1.0))
        if self._objects is None:
            return
        goes_on = False
        try:
            await self._follow(self._objects)
            goes_on = True
        except WatchRefused as err:
            await self._poll(err)
        except WatchExpired as err:
            log.info("the %s objects of %s are listed again: %s", self._selection.kind.kind, self._name, err)
            self._objects = None
            self._failures += 1
        except KubernetesUnavailable as err:
            self._problem = str(err)
            # What was sent may not have been understood; a watch that did not open has missed nothing.
            if self._watch is not None:
                self._objects = None
            self._failures += 1
        finally:
            if not goes_on:
                await self.close()

    async def _follow(self, objects: dict[str, Read]) -> None:
        """Wait for the next changes. Raises KubernetesUnavailable, WatchExpired."""
        if self._watch is None:
            self._watch = await self._api.watch(self._selection, self._version)
            self._watched_since = self._clock()
            self._may_watch = True
            if self._problem:
                self._problem = ""
                return  # The objects are available again, which is reported before the next change.
        changes = await self._watch.changes()
        for change in changes:
            self._apply(objects, change)
        if self._clock() - self._watched_since >= SHORT_SECONDS:
            self._failures = 0
        elif not changes:
            self._failures += 1
        if not changes:
            await self.close()

    def _apply(self, objects: dict[str, Read], change: ObjectChange[Read]) -> None:
        self._version = change.version
        if change.found is not None:
            objects[change.name] = change.found
        else:
            objects.pop(change.name, None)
        if len(objects) > OBJECTS_MAX:
            raise KubernetesUnavailable(
                f"there are more than {OBJECTS_MAX} {self._selection.kind.kind} objects"
            )

    async def _poll(self, refusal: WatchRefused) -> None:
        """Wait until the list is due again, for an account that may only list."""
        if self._may_watch:
            log.warning(
                "%s is listed every %g seconds, because its changes cannot be watched: %s; "
                "the service account needs `watch` on %s",
                self._name,
                self._every_seconds,
                refusal,
                self._selection.kind.plural,
            )
        self._may_watch, self._objects, self._failures = False, None, 0
        await asyncio.sleep(self._every_seconds)

    async def close(self) -> None:
        """Close the connection; the known objects are kept."""
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.close()


class WatchGroup:
    """The waits for several selections of objects together; a wait without a change continues."""

    def __init__(self) -> None:
        self._waits: dict[WatchedObjects[Any], asyncio.Future[None]] = {}

    async def wait(self, watched: Collection[WatchedObjects[Any]], seconds_max: float | None = None) -> None:
        """Wait until one of the selections has changed, or may have, but for so many seconds at most."""
        for each in watched:
            if each not in self._waits:
                self._waits[each] = asyncio.ensure_future(each.wait())
        try:
            done, _ = await asyncio.wait(
                self._waits.values(), timeout=seconds_max, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            await self.close(watched)
            raise
        self._waits = {each: task for each, task in self._waits.items() if task not in done}
        for task in done:
            task.result()

    async def close(self, watched: Iterable[WatchedObjects[Any]]) -> None:
        """End the watches of these selections."""
        for each in watched:
            if (task := self._waits.pop(each, None)) is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await each.close()
