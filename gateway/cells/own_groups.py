"""The isolation groups whose caches a cell follows: those of its own tenants, and those that tenants share."""

from gateway.cells.living_cells import LivingCells
from gateway.tenants.directory import NO_KEY, DirectoryUnavailable, TenantDirectory, UnknownKey

OF_TENANT = "tenant:"
"""Beginning of the names of groups with one tenant; see isolation_group."""


class OwnGroups:
    """The isolation groups of one cell, as of now: a tenant may belong to another cell a moment later."""

    def __init__(self, living: LivingCells, directory: TenantDirectory) -> None:
        self._living = living
        self._directory = directory

    def includes(self, group: str) -> bool:
        """Return whether the cell follows a group: not if its only tenant belongs to another cell."""
        if not group.startswith(OF_TENANT):
            return True
        try:
            tenant = self._directory.by_id(group.removeprefix(OF_TENANT), NO_KEY)
        except (UnknownKey, DirectoryUnavailable):
            return True
        return self._living.owner_of(tenant.organisation) == self._living.cell
