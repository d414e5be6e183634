"""Keeps the tenants of ConfigMaps and Secrets in force, beside those of the settings file.

    changed object --read, no name taken--> in force, as if it were in the settings file
                   `--refused--> the version before stays in force while this gateway runs; an Event has the reason
    deleted object --> its keys are unknown at once, its tenants once the database (if there is one) has been read

Every gateway does this by itself and in the same way, so there is no leader. If names clash, the settings file
wins, then the object that was in force first. An Event's name is made from its content, so of several gateways only
one creates it.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from gateway.kubernetes.api import KubernetesApi, KubernetesUnavailable, SelectedObjects
from gateway.kubernetes.objects import CONFIG_MAPS, EVENTS, SECRETS, ApiResource, ConfigMap, StoredSecret
from gateway.kubernetes.watched_objects import WatchedObjects, WatchGroup
from gateway.settings.tenants import TenantObjectsSettings
from gateway.tenants.kubernetes_tenants import (
    ObjectProblem,
    TenantsObject,
    content_hash,
    read_key,
    read_tenants,
)
from gateway.tenants.tenant_register import Names, TenantRegister
from gateway.tenants.yaml_directory import ReloadableDirectory, add_settings

log = logging.getLogger(__name__)

TENANTS_LABEL, KEY_LABEL = "radixgate/tenants", "radixgate/key"
LIST_SECONDS = 10.0
"""How often objects are listed if the service account may not watch them."""
EVENT_SECONDS = 1800.0
"""How often an Event is repeated while an object is refused; the cluster forgets Events after an hour."""
MESSAGE_CHARACTERS_MAX = 900

AnyObject = ConfigMap | StoredSecret
KindOf = TypeVar("KindOf", ConfigMap, StoredSecret)
Place = tuple[str, str]
"""Kind and name of an object."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The content that was read from one version of an object."""

    version: str
    content: TenantsObject | None
    problem: str = ""


class KubernetesDirectory:
    """The tenants of objects, put in force together with those of the settings file.

    Args:
        settings: the branch `tenant_objects`.
        api: the API of the cluster.
        inner: the directory that answers requests.
        file: the register of the settings file.
        pepper: of hashes of keys.
        wall: returns Unix time in seconds.
    """

    def __init__(
        self,
        settings: TenantObjectsSettings,
        api: KubernetesApi,
        inner: ReloadableDirectory,
        file: TenantRegister,
        pepper: bytes,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.loaded = False
        """Whether the objects were read once."""
        self.away = False
        """Whether the cluster currently reports no changes."""
        self._namespace = settings.namespace
        self._api = api
        self._inner = inner
        self._file = file
        self._pepper = pepper
        self._wall = wall
        self._config_maps = self._watched(CONFIG_MAPS, TENANTS_LABEL)
        self._secrets = self._watched(SECRETS, KEY_LABEL) if settings.keys else None
        self._group = WatchGroup()
        self._readings: dict[Place, _Reading] = {}
        self._last_good: dict[Place, TenantsObject] = {}
        self._in_force: dict[Place, TenantsObject] = {}
        self._problems: dict[Place, str] = {}
        self._events_made: dict[Place, tuple[str, int]] = {}

    def counts(self) -> dict[str, int]:
        """Return how many objects are in force, and how many are refused in their current version."""
        return {"in force": len(self._readings) - len(self._problems), "refused": len(self._problems)}

    def reconfigure(self, file: TenantRegister) -> None:
        """Replace the content of the settings file by this register."""
        self._file = file
        self._put_in_force(force=True)

    async def run(self) -> None:
        """Follow the objects until this coroutine is cancelled."""
        watched = [each for each in (self._config_maps, self._secrets) if each is not None]
        while True:
            try:
                found = await self._find()
            except KubernetesUnavailable as err:
                if not self.away:
                    log.warning(
                        "the ConfigMaps and Secrets of tenants cannot be read; their last contents stay in force: "
                        "%s",
                        err,
                    )
                self.away = True
            else:
                if self.away:
                    log.warning("the ConfigMaps and Secrets of tenants can be read again")
                self.away, self.loaded = False, True
                self._read(found)
                await self._make_events(found)
            await self._group.wait(watched, EVENT_SECONDS)

    async def _find(self) -> dict[Place, AnyObject]:
        found: dict[Place, AnyObject] = {}
        for name, tenants in (await self._config_maps.find()).items():
            found["ConfigMap", name] = tenants
        if self._secrets is not None:
            for name, key in (await self._secrets.find()).items():
                found["Secret", name] = key
        return found

    def _read(self, found: Mapping[Place, AnyObject]) -> None:
        """Read the changed objects, and put the valid ones in force."""
        readings: dict[Place, _Reading] = {}
        for place, each in found.items():
            before = self._readings.get(place)
            if before is not None and before.version == each.metadata.resource_version:
                readings[place] = before
                continue
            version = each.metadata.resource_version
            try:
                content = read_tenants(each) if isinstance(each, ConfigMap) else read_key(each, self._pepper)
            except ObjectProblem as err:
                readings[place] = _Reading(version, None, str(err)[:MESSAGE_CHARACTERS_MAX])
            else:
                readings[place] = _Reading(version, content)
                self._last_good[place] = content
        self._readings = readings
        self._last_good = {place: content for place, content in self._last_good.items() if place in found}
        self._put_in_force()

    def _put_in_force(self, *, force: bool = False) -> None:
        taken = self._file.names()
        in_force: dict[Place, TenantsObject] = {}
        problems = {place: each.problem for place, each in self._readings.items() if each.problem}
        # ConfigMaps before Secrets; an object that is in force already before a new one of the same name.
        order = sorted(self._last_good, key=lambda place: (place not in self._in_force, place))
        for place in order:
            content = self._last_good[place]
            clash = _clash(content.names(), taken)
            if clash is not None:
                problems[place] = problems.get(place) or clash
                continue
            in_force[place] = content
            for kind, names in content.names().items():
                taken[kind] |= names
        changed = force or in_force != self._in_force
        self._in_force, self._problems = in_force, problems
        if not changed:
            return
        merged = TenantRegister(self._pepper, self._wall)
        merged.put_all(self._file)
        for content in in_force.values():
            add_settings(merged, content.settings)
        for content in in_force.values():
            for tenant, key in content.keys:
                merged.put_key(tenant, key)
        self._inner.reconfigure(merged)

    # ---- Events

    async def _make_events(self, found: Mapping[Place, AnyObject]) -> None:
        """Create an Event for each object with a new state, and repeatedly for each refused object."""
        self._events_made = {place: made for place, made in self._events_made.items() if place in found}
        for place, each in found.items():
            problem = self._problems.get(place, "")
            again = int(self._wall() // EVENT_SECONDS) if problem else 0
            digest = hashlib.sha256(content_hash(each.data) + problem.encode() + str(again).encode())
            event = digest.hexdigest()[:16], again
            if self._events_made.get(place) == event:
                continue
            if problem and self._events_made.get(place, ("", 0))[1] == 0:
                log.warning("%s %s is refused: %s", *place, problem)
            try:
                await self._make_event(place, each, problem, event[0])
            except KubernetesUnavailable as err:
                log.info("no Event could be made for %s %s: %s", *place, err)
                return
            self._events_made[place] = event

    async def _make_event(self, place: Place, each: AnyObject, problem: str, digest: str) -> None:
        kind, name = place
        namespace = each.metadata.namespace or self._namespace or self._api.namespace()
        now = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        before = "; the version before stays in force while this gateway runs"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name[:200]}.{digest}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": kind,
                "name": name,
                "namespace": namespace,
                "uid": each.metadata.uid,
            },
            "type": "Warning" if problem else "Normal",
            "reason": "Refused" if problem else "InForce",
            "message": f"{problem}{before if place in self._in_force else ''}" if problem else "in force",
            "source": {"component": "radixgate"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        # 409 means that another gateway was first. Without the right to create Events, only the log has the text.
        status = await self._api.change(
            SelectedObjects(kind=EVENTS, namespace=self._namespace), event, create=True
        )
        if status not in (201, 409):
            log.info("the API server answers %d to an Event for %s %s", status, kind, name)

    def _watched(self, kind: ApiResource[KindOf], label: str) -> WatchedObjects[KindOf]:
        selection = SelectedObjects(kind=kind, namespace=self._namespace, labels=label)
        return WatchedObjects(self._api, selection, name="tenants", every_seconds=LIST_SECONDS)


def _clash(names: Names, taken: Names) -> str | None:
    for kind, each in names.items():
        for name in sorted(each & taken[kind]):
            return f"the settings or another object have {kind} named {name} already"
    return None
