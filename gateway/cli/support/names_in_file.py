"""Notes of commands on the database: tenants, plans, organisations and keys that the settings file has."""

import sys
from collections.abc import Sequence
from typing import Literal

from gateway.settings.tree import Settings

Kind = Literal["tenants", "plans", "organisations", "keys"]
NAMES_SHOWN_MAX = 10


def names_in_file(settings: Settings, kind: Kind) -> Sequence[str]:
    """Return the names of one kind that do not come from the database."""
    if kind == "plans":
        return [plan.name for plan in settings.plans]
    if kind == "keys":
        return [key.id for tenant in settings.tenants for key in tenant.keys]
    return [one.id for one in (settings.tenants if kind == "tenants" else settings.organisations)]


def note_hidden(settings: Settings, kind: Kind, name: str) -> None:
    """Print on standard error if a change of the database has no effect yet, since the file has the same name."""
    if name in names_in_file(settings, kind):
        print(
            f"note: the settings file has the {kind.removesuffix('s')} {name} too, and wins: what the database "
            "says takes effect once it leaves the file",
            file=sys.stderr,
        )


def note_others(settings: Settings, kind: Kind) -> None:
    """Print on standard error which names a list of the database lacks, since they are in the settings file."""
    names = names_in_file(settings, kind)
    if names:
        more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
        print(
            f"note: listed is the database; the settings file has {kind} of its own: "
            f"{', '.join(names[:NAMES_SHOWN_MAX])}{more}",
            file=sys.stderr,
        )
