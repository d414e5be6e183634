"""The result of an import from LiteLLM: what was imported, and what was not."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.database.row_conversion import StoredKey
from gateway.settings.tenants import OrganisationSettings, PlanSettings, TenantSettings

Row = Mapping[str, Any]

NAME_MAX = 50


class LitellmFormatError(Exception):
    """The input is not in the format of LiteLLM; the text names the place in one line."""


@dataclass(slots=True)
class ImportResult:
    """What was imported from LiteLLM, and what could not be."""

    models: list[dict[str, Any]] = field(default_factory=list)
    """Entries of `models` in a settings file."""

    workers: list[dict[str, Any]] = field(default_factory=list)
    """Entries of `workers` in a settings file."""

    organisations: dict[str, OrganisationSettings] = field(default_factory=dict)
    plans: dict[str, PlanSettings] = field(default_factory=dict)
    tenants: dict[str, TenantSettings] = field(default_factory=dict)
    keys: list[StoredKey] = field(default_factory=list)
    addresses: tuple[str, ...] = ()
    """Address ranges from which keys may be used."""

    not_imported: list[str] = field(default_factory=list)
    """One line for each thing that radixgate has no place for."""

    def model_names(self) -> dict[str, str]:
        """Return the own name of a model by every name that clients use for the model."""
        found = {}
        for model in self.models:
            found.update(dict.fromkeys((model["name"], *model.get("aliases", ())), model["name"]))
        return found

    def note_not_imported(self, where: str, row: Row, *names: str) -> None:
        """Add a line to `not_imported` for each of these fields that is not empty."""
        for name in names:
            if row.get(name) not in (None, "", 0, False, [], {}):
                self.not_imported.append(f"{where}: {name}")


def unique_identifier(wanted: str | None, default: str, taken: Mapping[str, object]) -> str:
    """Return a valid identifier that is similar to the wanted name and not taken."""
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", wanted or default).strip("-._")[:NAME_MAX] or "unnamed"
    found, number = text, 2
    while found in taken:
        found, number = f"{text}-{number}", number + 1
    return found


def table_rows(tables: Mapping[str, Any], name: str) -> list[Row]:
    """Return the rows of a table. Raises LitellmFormatError if they are not a list of mappings."""
    found = tables.get(name) or []
    if not isinstance(found, list) or not all(isinstance(row, Mapping) for row in found):
        raise LitellmFormatError(f"{name}: expected a list of rows")
    return found
