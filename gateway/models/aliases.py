"""Other names of models in requests: exact names, and patterns such as `claude-*`, for all tenants or for one.

A name is looked up in this order: the tenant's own aliases, the models, the aliases of all tenants. Among aliases
an exact name comes before patterns, and patterns come in the order of the settings. `find` of catalogue.py does it.
A name that stands for several versions of a model (a canary) is not an alias: see model_selection.py.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from gateway.settings.models import ModelSettings

WILDCARD = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasTable:
    """The aliases for all tenants, or for one tenant, each with the name of its model."""

    exact: Mapping[str, str]
    patterns: tuple[tuple[str, str], ...]

    def model(self, name: str) -> str | None:
        """Return the name of the model with this alias; None if the name is not an alias."""
        found = self.exact.get(name)
        if found is None:
            found = next((model for pattern, model in self.patterns if fnmatchcase(name, pattern)), None)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAliases:
    """All aliases of one version of the settings."""

    shared: AliasTable = field(default_factory=lambda: AliasTable(exact={}, patterns=()))
    """The aliases of all tenants."""
    by_tenant: Mapping[str, AliasTable] = field(default_factory=dict)
    """Each tenant's own aliases, by the tenant's id."""


def model_aliases(models: Iterable[ModelSettings]) -> ModelAliases:
    """Return the aliases in the settings of the models."""
    models = tuple(models)
    tenants = dict.fromkeys(tenant for model in models for tenant in model.tenant_aliases)
    return ModelAliases(
        shared=_table((alias, model.name) for model in models for alias in model.aliases),
        by_tenant={
            tenant: _table(
                (alias, model.name) for model in models for alias in model.tenant_aliases.get(tenant, ())
            )
            for tenant in tenants
        },
    )


def _table(aliases: Iterable[tuple[str, str]]) -> AliasTable:
    aliases = tuple(aliases)
    return AliasTable(
        exact={alias: model for alias, model in aliases if WILDCARD not in alias},
        patterns=tuple((alias, model) for alias, model in aliases if WILDCARD in alias),
    )
