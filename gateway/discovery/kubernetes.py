"""Finds workers in the cluster by objects that are listed once and then watched.

    name            a Service         the endpoints of its EndpointSlices
    selector        labels            the pods that have them
    inference_pool  an InferencePool  the pods that its selector chooses, at its target ports

What is not ready or about to end is left out, and the fleet then drains it. The service account needs `list` and
`watch` on endpointslices (discovery.k8s.io), on pods, or on pods and inferencepools (inference.networking.k8s.io).
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from gateway.discovery.source import SourceUnavailable
from gateway.kubernetes.api import ACCOUNT, API, KubernetesApi, KubernetesUnavailable, SelectedObjects
from gateway.kubernetes.objects import (
    ENDPOINT_SLICES,
    INFERENCE_POOLS,
    PODS,
    ApiResource,
    ContainerGroup,
    EndpointPort,
    EndpointSlice,
    InferencePool,
    NamedObject,
    label_selector,
)
from gateway.kubernetes.watched_objects import WatchedObjects, WatchGroup
from gateway.settings.workers import DiscoverySettings, WorkerSettings

ADDRESSES_MAX = 20_000
Read = TypeVar("Read", bound=NamedObject)

PORT = 8000
"""The port of pods that name none, and whose settings name none."""


class KubernetesSource:
    """A source with a worker at each ready endpoint of a Service, or each ready pod of a selection.

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
        self._settings = settings
        self._api = KubernetesApi(api, account)
        self._clock = clock
        self._pool: WatchedObjects[InferencePool] | None = None
        self._slices: WatchedObjects[EndpointSlice] | None = None
        self._pods: WatchedObjects[ContainerGroup] | None = None
        self._labels, self._ports = "", tuple[int, ...]()
        self._group = WatchGroup()
        if settings.inference_pool:
            self.name = f"inference pool {settings.inference_pool}"
            self._pool = self._watched(INFERENCE_POOLS, name=settings.inference_pool)
        elif settings.selector:
            self.name = f"pods with {settings.selector}"
            self._follow_pods(settings.selector)
        else:
            self.name = f"service {settings.name}"
            self._slices = self._watched(ENDPOINT_SLICES, f"kubernetes.io/service-name={settings.name}")

    async def find(self) -> list[WorkerSettings]:
        """Return the workers of all ready endpoints or pods. Raises SourceUnavailable."""
        try:
            if self._slices is not None:
                return _bounded(_of_slices((await self._slices.find()).values(), self._settings))
            if self._pool is not None:
                await self._follow_pool(self._pool)
            if self._pods is None:
                return []
            pods = (await self._pods.find()).values()
            return _bounded(_of_pods(pods, self._settings, self._ports))
        except KubernetesUnavailable as err:
            raise SourceUnavailable(str(err)) from err

    async def wait(self) -> None:
        """Wait until an object changes, or until a watch is lost."""
        await self._group.wait([one for one in (self._pool, self._slices, self._pods) if one is not None])

    async def _follow_pool(self, pool: WatchedObjects[InferencePool]) -> None:
        """Select pods by the present InferencePool. Raises KubernetesUnavailable."""
        found = (await pool.find()).get(self._settings.inference_pool or "")
        if found is None:
            raise KubernetesUnavailable("there is no such InferencePool")
        labels = label_selector(found.spec.selector.match_labels)
        if not labels:
            raise KubernetesUnavailable("the InferencePool selects by no labels, which would be every pod")
        self._ports = tuple(each.number for each in found.spec.target_ports)
        if labels != self._labels:
            if self._pods is not None:
                await self._group.close([self._pods])
            self._follow_pods(labels)

    def _follow_pods(self, labels: str) -> None:
        self._labels = labels
        self._pods = self._watched(PODS, labels)

    def _watched(self, kind: ApiResource[Read], labels: str = "", name: str = "") -> WatchedObjects[Read]:
        namespace, every_seconds = self._settings.namespace, self._settings.every_seconds
        selection = SelectedObjects(kind=kind, namespace=namespace, labels=labels, name=name)
        return WatchedObjects(
            self._api, selection, name=self.name, every_seconds=every_seconds, clock=self._clock
        )


def _bounded(found: list[WorkerSettings]) -> list[WorkerSettings]:
    if len(found) > ADDRESSES_MAX:
        raise SourceUnavailable(f"there are more than {ADDRESSES_MAX} endpoints")
    return found


def _of_slices(slices: Iterable[EndpointSlice], settings: DiscoverySettings) -> list[WorkerSettings]:
    found: dict[str, WorkerSettings] = {}
    for one in slices:
        port = _slice_port(one.ports or [], settings)
        for endpoint in one.endpoints or ():
            conditions = endpoint.conditions
            is_serving = conditions is None or (conditions.ready is not False and not conditions.terminating)
            if port is None or not is_serving:
                continue
            pod = endpoint.target_ref.name if endpoint.target_ref is not None else None
            for address in endpoint.addresses or ():
                found[address] = settings.worker(address, port, name=pod)
    return [found[address] for address in sorted(found)]


def _slice_port(ports: list[EndpointPort], settings: DiscoverySettings) -> int | None:
    """Return the port with the name of the settings, else the number of the settings, else the first port."""
    if settings.port_name is not None:
        return next((port.port for port in ports if port.name == settings.port_name), None)
    if settings.port is not None:
        return settings.port
    return ports[0].port if ports else None


def _of_pods(
    pods: Iterable[ContainerGroup], settings: DiscoverySettings, target_ports: tuple[int, ...]
) -> list[WorkerSettings]:
    """Return a worker for each ready pod, or for each target port of an InferencePool at each of them."""
    found = []
    for pod in sorted(pods, key=_name_of):
        if not pod.is_ready:
            continue
        name = pod.metadata.name
        for at, port in enumerate(target_ports or _container_ports(pod, settings)):
            own_name = f"{name}-{port}" if at else name
            found.append(settings.worker(pod.status.address, port, name=own_name))
    return found


def _container_ports(pod: ContainerGroup, settings: DiscoverySettings) -> list[int]:
    """Return the port that the settings name or number, else the usual one; none if no container has it."""
    if settings.port_name is None:
        return [settings.port or PORT]
    named = [
        port.container_port
        for container in pod.spec.containers or ()
        for port in container.ports or ()
        if port.name == settings.port_name and port.container_port is not None
    ]
    return named[:1]


def _name_of(found: NamedObject) -> str:
    return found.metadata.name
