"""The accounts of escrow by the scopes of their requests; beyond ACCOUNTS_MAX the least recently used one goes."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from operator import attrgetter

from gateway.quotas.escrow_account import EscrowAccount
from gateway.quotas.quota_store import Reservation

ACCOUNTS_MAX = 1024

AccountKey = tuple[str, ...]
"""Organisation, tenant, model, and the names of all scopes."""

_scope_name = attrgetter("name")


class EscrowAccounts:
    """All accounts; `give_back` gives back the leases that are ahead in an account that is dropped."""

    def __init__(self, give_back: Callable[[EscrowAccount], None]) -> None:
        self._give_back = give_back
        self._accounts: OrderedDict[AccountKey, EscrowAccount] = OrderedDict()
        self._keys_of: dict[str, set[AccountKey]] = {}
        """Accounts by organisation: a refusal concerns no others."""

    def __len__(self) -> int:
        """Return the number of accounts."""
        return len(self._accounts)

    def __iter__(self) -> Iterator[EscrowAccount]:
        return iter(self._accounts.values())

    def of(self, reservation: Reservation) -> EscrowAccount:
        """Return the request's account, a new one where other limits hold from now on."""
        names = map(_scope_name, reservation.scopes)
        key = (reservation.organisation, reservation.tenant, reservation.model, *names)
        account = self._accounts.get(key)
        if account is None or account.last.scopes != reservation.scopes:
            if account is not None:
                account.dropped = True
                self._give_back(account)
            account = self._accounts[key] = EscrowAccount(reservation)
            self._keys_of.setdefault(key[0], set()).add(key)
            if len(self._accounts) > ACCOUNTS_MAX:
                self.drop(next(iter(self._accounts.values())))
        self._accounts.move_to_end(key)
        return account

    def known(self, reservation: Reservation) -> EscrowAccount | None:
        """Return the account of an earlier request, if there is still one with the same limits."""
        names = map(_scope_name, reservation.scopes)
        account = self._accounts.get(
            (reservation.organisation, reservation.tenant, reservation.model, *names)
        )
        return account if account is not None and account.last.scopes == reservation.scopes else None

    def of_organisation(self, organisation: str) -> list[EscrowAccount]:
        """Return the accounts of all tenants of an organisation."""
        return [self._accounts[key] for key in self._keys_of.get(organisation, ())]

    def drop(self, account: EscrowAccount) -> None:
        """Remove an account, and give its leases back."""
        last = account.last
        key = (last.organisation, last.tenant, last.model, *map(_scope_name, last.scopes))
        del self._accounts[key]
        account.dropped = True
        self._give_back(account)
        keys = self._keys_of[key[0]]
        keys.discard(key)
        if not keys:
            del self._keys_of[key[0]]
