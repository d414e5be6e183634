"""Moved: what was carried over, and what was not."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.database.rows import StoredKey
from gateway.settings.tenants import OrganisationSettings, PlanSettings, TenantSettings

Row = Mapping[str, Any]

NAME_MAX = 50


class LitellmFormatError(Exception):
    """What was given is not what LiteLLM writes; one line says where."""


@dataclass(slots=True)
class ImportResult:
    """`models`, `workers`: entries of a settings file. `left`: a line for everything that has no place here."""

    models: list[dict[str, Any]] = field(default_factory=list)
    workers: list[dict[str, Any]] = field(default_factory=list)
    organisations: dict[str, OrganisationSettings] = field(default_factory=dict)
    plans: dict[str, PlanSettings] = field(default_factory=dict)
    tenants: dict[str, TenantSettings] = field(default_factory=dict)
    keys: list[StoredKey] = field(default_factory=list)
    addresses: tuple[str, ...] = ()
    left: list[str] = field(default_factory=list)

    def names(self) -> dict[str, str]:
        """The model's own name by every name that clients use."""
        found = {}
        for model in self.models:
            found.update(dict.fromkeys((model["name"], *model.get("aliases", ())), model["name"]))
        return found

    def leave(self, where: str, row: Row, *names: str) -> None:
        """Says so for those of the named fields that have something in them."""
        for name in names:
            if row.get(name) not in (None, "", 0, False, [], {}):
                self.left.append(f"{where}: {name}")


def unique_identifier(wanted: str | None, otherwise: str, taken: Mapping[str, object]) -> str:
    """A name as settings have them, near to the one that is wanted, and not taken."""
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", wanted or otherwise).strip("-._")[:NAME_MAX] or "unnamed"
    found, number = text, 2
    while found in taken:
        found, number = f"{text}-{number}", number + 1
    return found


def table_rows(tables: Mapping[str, Any], name: str) -> list[Row]:
    """Raises NotLitellm."""
    found = tables.get(name) or []
    if not isinstance(found, list) or not all(isinstance(row, Mapping) for row in found):
        raise LitellmFormatError(f"{name}: expected a list of rows")
    return found
