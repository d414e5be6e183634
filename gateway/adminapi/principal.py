"""The authenticated caller of the operators' listener."""

from dataclasses import dataclass

from gateway.database.operators import ROLES
from gateway.settings.token_issuers import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """An authenticated operator, token or session, and its role."""

    name: str
    """The name under which the audit log records the changes made by this caller."""
    role: Role

    def has_role(self, least: Role) -> bool:
        """Return whether the role is at least the given one."""
        return ROLES.index(self.role) >= ROLES.index(least)
