"""Organisations, plans, tenants and keys from ConfigMaps and Secrets of the cluster, read one by one.

    ConfigMap, label radixgate/tenants   organisations, plans, tenants: lists in YAML, as in the settings
    Secret, label radixgate/key          tenant: its id; key: the API key; settings: the rest of the key's, in YAML

An object is in force as a whole or not at all. References such as ${env:NAME} are not replaced here, since an
object must not read the gateway's own secrets.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.kubernetes.objects import ConfigMap, StoredSecret
from gateway.settings.sources import convert_settings
from gateway.settings.tenants import ApiKeySettings
from gateway.settings.tree import Settings
from gateway.settings.types import SettingsProblem
from gateway.settings.yaml import parse_yaml
from gateway.tenants.keys import HASH_PREFIX, key_digest, key_id
from gateway.tenants.tenant_register import Names

LISTS = ("organisations", "plans", "tenants")
KEY_ENTRIES = ("tenant", "key", "settings")
FOREIGN_KEY_LENGTH_MIN = 32
"""The shortest key that is accepted if the gateway did not make it; its length is the only sign of its strength."""

Entries = Mapping[str, str]


class ObjectProblem(Exception):
    """An object cannot be in force; the text has the reason, and quotes no secret."""


@dataclass(frozen=True, slots=True)
class TenantsObject:
    """The content of one object."""

    settings: Settings
    """Organisations, plans and tenants with their keys."""
    keys: tuple[tuple[str, ApiKeySettings], ...] = ()
    """Keys for tenants that are defined elsewhere (settings, database, other objects), with the tenant's id."""

    def names(self) -> Names:
        """Return all names that the object defines, by kind."""
        tenants = self.settings.tenants
        inner = {key.id for tenant in tenants for key in tenant.keys}
        return {
            "organisations": {each.id for each in self.settings.organisations},
            "plans": {each.name for each in self.settings.plans},
            "tenants": {each.id for each in tenants},
            "keys": inner | {key.id for _, key in self.keys},
        }


def read_tenants(found: ConfigMap) -> TenantsObject:
    """Return the content of a ConfigMap. Raises ObjectProblem."""
    data = found.data or {}
    _check_entries(data, LISTS)
    try:
        tree = {name: parse_yaml(text, name) or [] for name, text in data.items()}
        settings = convert_settings(tree)
    except SettingsProblem as err:
        raise ObjectProblem(str(err)) from err
    content = TenantsObject(settings)
    counts = {
        "organisations": len(settings.organisations),
        "plans": len(settings.plans),
        "tenants": len(settings.tenants),
        "keys": sum(len(tenant.keys) for tenant in settings.tenants),
    }
    for kind, names in content.names().items():
        if len(names) < counts[kind]:
            raise ObjectProblem(f"two of its {kind} have the same name")
    return content


def read_key(found: StoredSecret, pepper: bytes) -> TenantsObject:
    """Return the key of a Secret, with `pepper` for its hash. Raises ObjectProblem."""
    data = found.data or {}
    _check_entries(data, KEY_ENTRIES)
    tenant, text = (_decoded(data, name) for name in ("tenant", "key"))
    identity = key_id(text)
    if identity is None and len(text) < FOREIGN_KEY_LENGTH_MIN:
        raise ObjectProblem(
            f"key: it is no key of `radixgate keys new`, and shorter than {FOREIGN_KEY_LENGTH_MIN} characters"
        )
    more = _key_settings(data)
    own = {"id": identity or found.metadata.name, "hash": HASH_PREFIX + key_digest(text, pepper).hex()}
    try:
        settings = convert_settings({"tenants": [{"id": tenant, "keys": [{**more, **own}]}]})
    except SettingsProblem as err:
        raise ObjectProblem(str(err).replace("$.tenants[0].keys[0]", "settings")) from err
    return TenantsObject(Settings(), ((tenant, settings.tenants[0].keys[0]),))


def _key_settings(data: Entries) -> dict[str, Any]:
    if "settings" not in data:
        return {}
    try:
        more = parse_yaml(_decoded(data, "settings"), "settings")
    except SettingsProblem as err:
        raise ObjectProblem(str(err)) from err
    if not isinstance(more, dict) or {"id", "hash"} & more.keys():
        raise ObjectProblem("settings: expected settings of a key as a mapping, without id and hash")
    return more


def _check_entries(data: Entries, known: tuple[str, ...]) -> None:
    for name in sorted(data.keys() - set(known)):
        raise ObjectProblem(f"the entry {name[:100]} is none of {', '.join(known)}")


def _decoded(data: Entries, name: str) -> str:
    if name not in data:
        raise ObjectProblem(f"the entry {name} is missing")
    try:
        text = base64.b64decode(data[name], validate=True).decode("utf-8").strip()
    except (binascii.Error, UnicodeDecodeError) as err:
        raise ObjectProblem(f"{name}: it is not text") from err
    if not text:
        raise ObjectProblem(f"{name}: it is empty")
    return text


def content_hash(data: Entries | None) -> bytes:
    """Return bytes that change with the entries of an object."""
    return msgspec.json.encode(sorted((data or {}).items()))
