"""What the admin API is about, taken from a gateway."""

import time
from typing import TYPE_CHECKING

from gateway.adminapi.routes import Records
from gateway.app import Gateway
from gateway.database.audit_log import AuditLog, chain_key
from gateway.database.tenant_store import TenantStore
from gateway.secret_store import deployment_secret
from gateway.tenants.keys import pepper
from gateway.tenants.penalties import Penalties

if TYPE_CHECKING:
    from gateway.adminapi.issuers import OperatorTokens


def records_of(gateway: Gateway) -> Records | None:
    """None where there is no database."""
    ledger, directory = gateway.records.ledger, gateway.records.directory
    if ledger is None or directory is None:
        return None
    settings, secret = gateway.settings, deployment_secret(gateway.settings)
    return Records(
        admin=settings.admin,
        store=TenantStore(ledger.database, chain_key(secret)),
        audit=AuditLog(ledger.database, chain_key(secret)),
        usage=ledger.reader,
        pepper=pepper(secret),
        tokens=_tokens(gateway),
        penalties=Penalties(settings.authentication.failures_per_minute_max, time.monotonic),
        upgrades=ledger.upgrades,
        version=gateway.version,
        changed=directory.ring,
    )


def _tokens(gateway: Gateway) -> "OperatorTokens | None":
    if not gateway.issuers:
        return None
    from gateway.adminapi.issuers import OperatorTokens

    return OperatorTokens(gateway.issuers)
