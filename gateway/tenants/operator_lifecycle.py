"""The life of an operator's token in the database: created and revoked."""

import time
from collections.abc import Callable

import msgspec

from gateway.database.operators import Operator
from gateway.database.tenant_store import TenantStore
from gateway.settings.token_issuers import Role
from gateway.tenants.key_lifecycle import KeyProblem
from gateway.tenants.keys import OPERATOR_PREFIX, NewKey, new_key


class OperatorLifecycle:
    """Creates and revokes tokens of operators; `wall` is Unix time in seconds.

    Every method raises KeyProblem, DatabaseDown, DatabaseConflict.
    """

    def __init__(self, store: TenantStore, pepper: bytes, wall: Callable[[], float] = time.time) -> None:
        self._store = store
        self._pepper = pepper
        self._wall = wall

    def acting(self, store: TenantStore) -> "OperatorLifecycle":
        """Return the same lifecycle on a store that records another actor in the audit log."""
        return OperatorLifecycle(store, self._pepper, self._wall)

    async def create(self, name: str, role: Role, expires: float | None = None) -> NewKey:
        """Create a token and return it; its text is stored nowhere else."""
        made = new_key(self._pepper, OPERATOR_PREFIX)
        operator = Operator(
            id=made.id, name=name, role=role, hash=made.hash, created=self._wall(), expires=expires
        )
        async with self._store.change() as change:
            await change.put_operator(operator)
        return made

    async def revoke(self, identity: str) -> Operator:
        """Revoke a token permanently."""
        async with self._store.change() as change:
            change.action = "revoke"
            operator = await change.operator(identity)
            if operator is None:
                raise KeyProblem(f"there is no operator {identity!r}")
            if operator.revoked is None:
                operator = msgspec.structs.replace(operator, revoked=self._wall())
                await change.put_operator(operator)
        return operator
