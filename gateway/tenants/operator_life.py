"""The life of an operator's token: made, and revoked."""

import time
from collections.abc import Callable

import msgspec

from gateway.database.operators import Operator
from gateway.database.tenant_store import TenantStore
from gateway.settings.token_issuers import Role
from gateway.tenants.key_life import KeyProblem
from gateway.tenants.keys import OPERATOR_PREFIX, NewKey, new_key


class OperatorLife:
    """`wall`: Unix time in seconds. Every method raises KeyProblem, DatabaseDown, DatabaseConflict."""

    def __init__(self, store: TenantStore, pepper: bytes, wall: Callable[[], float] = time.time) -> None:
        self._store = store
        self._pepper = pepper
        self._wall = wall

    def acting(self, store: TenantStore) -> "OperatorLife":
        """The same with a store that somebody else acts through."""
        return OperatorLife(store, self._pepper, self._wall)

    async def create(self, name: str, role: Role, expires: float | None = None) -> NewKey:
        """A new token; its text is nowhere but in the answer."""
        made = new_key(self._pepper, OPERATOR_PREFIX)
        operator = Operator(
            id=made.id, name=name, role=role, hash=made.hash, created=self._wall(), expires=expires
        )
        async with self._store.change() as change:
            await change.put_operator(operator)
        return made

    async def revoke(self, identity: str) -> Operator:
        """It ends now, for ever. One that is revoked stays so."""
        async with self._store.change() as change:
            change.action = "revoke"
            operator = await change.operator(identity)
            if operator is None:
                raise KeyProblem(f"there is no operator {identity!r}")
            if operator.revoked is None:
                operator = msgspec.structs.replace(operator, revoked=self._wall())
                await change.put_operator(operator)
        return operator
