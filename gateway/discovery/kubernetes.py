"""Finds workers of a Kubernetes Service by its EndpointSlices, which are listed once and then watched.

    list --> watch --each change--> the fleet is updated
     ^         |-- ended, broken off -----> watch again, from the last version that was seen
     +---------+-- version gone, garbage -> list again

Failures are followed by pauses that grow. Endpoints that are not ready or are terminating are left out, and the
fleet then drains them. The service account needs `list` and `watch` on `endpointslices` of the API group
`discovery.k8s.io`; where it may only list, the list is read every `every_seconds`.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

from gateway.discovery.slice_api import (
    SLICES_MAX,
    EndpointPort,
    EndpointSlice,
    SliceApi,
    SliceChange,
    SliceWatch,
    WatchExpired,
    WatchRefused,
)
from gateway.discovery.source import SourceUnavailable
from gateway.settings.workers import DiscoverySettings, WorkerSettings

log = logging.getLogger(__name__)

API = "https://kubernetes.default.svc"
"""The name of the API server in every cluster, which its certificate contains."""

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 30.0
SHORT_SECONDS = 5.0
"""A watch that ends sooner counts as a failure, so that it is not opened all the time."""

ADDRESSES_MAX = 20_000


class KubernetesSource:
    """A source with a worker at each ready endpoint of a Service.

    Args:
        settings: the entry of `discovery`.
        api: address of the API server.
        account: directory of the service account, with token, ca.crt and namespace.
        clock: returns monotonic time in seconds.
    """

    def __init__(
        self,
        settings: DiscoverySettings,
        api: str = API,
        account: Path = ACCOUNT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = f"service {settings.name}"
        self._settings = settings
        self._api = SliceApi(api, account, settings.name, settings.namespace)
        self._clock = clock
        self._slices: dict[str, EndpointSlice] | None = None
        """The slices as they were at `_version`; None: they must be listed."""
        self._version = ""
        self._watch: SliceWatch | None = None
        self._watched_since = 0.0
        self._may_watch = True
        self._problem = ""
        """Why changes are not seen; empty if they are."""
        self._failures = 0

    async def find(self) -> list[WorkerSettings]:
        """Return the workers of all ready endpoints. Raises SourceUnavailable."""
        if self._slices is None:
            try:
                self._slices, self._version = await self._api.list()
            except SourceUnavailable:
                self._failures += 1
                raise
            self._problem = ""
        if self._problem:
            raise SourceUnavailable(self._problem)
        return self._workers(self._slices)

    async def wait(self) -> None:
        """Wait until the slices have changed, or whether they have is not known any more."""
        if self._failures and self._watch is None:
            longest = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 10))
            await asyncio.sleep(longest * random.uniform(0.5, 1.0))
        if self._slices is None:
            return
        goes_on = False
        try:
            await self._follow(self._slices)
            goes_on = True
        except WatchRefused as err:
            await self._poll(err)
        except WatchExpired as err:
            log.info("the EndpointSlices of %s are listed again: %s", self.name, err)
            self._slices = None
            self._failures += 1
        except SourceUnavailable as err:
            self._problem = str(err)
            # What was sent may not have been understood; a watch that did not open has missed nothing.
            if self._watch is not None:
                self._slices = None
            self._failures += 1
        finally:
            if not goes_on:
                await self._hang_up()

    async def _follow(self, slices: dict[str, EndpointSlice]) -> None:
        """Wait for the next changes. Raises SourceUnavailable, WatchExpired."""
        if self._watch is None:
            self._watch = await self._api.watch(self._version)
            self._watched_since = self._clock()
            self._may_watch = True
            if self._problem:
                self._problem = ""
                return  # The source is available again, which is told before the next change.
        changes = await self._watch.changes()
        for change in changes:
            self._apply(slices, change)
        if self._clock() - self._watched_since >= SHORT_SECONDS:
            self._failures = 0
        elif not changes:
            self._failures += 1
        if not changes:
            await self._hang_up()

    def _apply(self, slices: dict[str, EndpointSlice], change: SliceChange) -> None:
        self._version = change.version
        if change.slice is not None:
            slices[change.name] = change.slice
        else:
            slices.pop(change.name, None)
        if len(slices) > SLICES_MAX:
            raise SourceUnavailable(f"the service has more than {SLICES_MAX} EndpointSlices")

    async def _poll(self, refusal: WatchRefused) -> None:
        """Wait until the list is due again, for an account that may only list."""
        if self._may_watch:
            log.warning(
                "the workers of %s are listed every %g seconds, because its changes cannot be watched: %s; "
                "the service account needs `watch` on endpointslices",
                self.name,
                self._settings.every_seconds,
                refusal,
            )
        self._may_watch, self._slices, self._failures = False, None, 0
        await asyncio.sleep(self._settings.every_seconds)

    async def _hang_up(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.close()

    def _workers(self, slices: dict[str, EndpointSlice]) -> list[WorkerSettings]:
        found: dict[str, WorkerSettings] = {}
        for one in slices.values():
            port = _port(one.ports or [], self._settings)
            for endpoint in one.endpoints or ():
                conditions = endpoint.conditions
                is_serving = conditions is None or (
                    conditions.ready is not False and not conditions.terminating
                )
                if port is None or not is_serving:
                    continue
                pod = endpoint.target_ref.name if endpoint.target_ref is not None else None
                for address in endpoint.addresses or ():
                    found[address] = self._settings.worker(address, port, name=pod)
            if len(found) > ADDRESSES_MAX:
                raise SourceUnavailable(f"the service has more than {ADDRESSES_MAX} endpoints")
        return [found[address] for address in sorted(found)]


def _port(ports: list[EndpointPort], settings: DiscoverySettings) -> int | None:
    """Return the port with the name of the settings, else the number of the settings, else the first port."""
    if settings.port_name is not None:
        return next((port.port for port in ports if port.name == settings.port_name), None)
    if settings.port is not None:
        return settings.port
    return ports[0].port if ports else None
