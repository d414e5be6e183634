"""What the operators' listener needs of a gateway: its records, who may look at them, and how to log in."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.adminapi.authorization import Authorization, OperatorTokenStore
from gateway.adminapi.ended_sessions import EndedSessions
from gateway.adminapi.route_explanation import Decode
from gateway.adminapi.routes import AdminApiServices
from gateway.adminapi.sessions import OperatorSessions
from gateway.adminapi.signed_cookies import CookieSigner
from gateway.app import Gateway
from gateway.database.audit_log import AuditLog, chain_key
from gateway.database.tenant_store import TenantStore
from gateway.process.secrets import deployment_secret
from gateway.tenants.auth_throttle import AuthThrottle
from gateway.tenants.keys import pepper

if TYPE_CHECKING:
    from gateway.adminapi.login import BrowserLogin


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminServices:
    """`records`: None where there is no database. `login`: None where nobody can log in with a browser."""

    gate: Authorization
    records: AdminApiServices | None
    login: "BrowserLogin | None"


def admin_services(gateway: Gateway, decode: Decode) -> AdminServices:
    """All of it, put together. `decode`: the body of a request that is to be explained to what it asks for."""
    settings, secret = gateway.settings, deployment_secret(gateway.settings)
    records = _records(gateway, secret, decode)
    operators = None
    if records is not None:
        operators = OperatorTokenStore(store=records.store, pepper=records.pepper, upgrades=records.upgrades)
    auth_throttle = AuthThrottle(settings.authentication.failures_per_minute_max, time.monotonic)
    if not gateway.issuers:
        return AdminServices(gate=Authorization(settings.admin, operators, auth_throttle), records=records, login=None)

    from gateway.adminapi.issuer_tokens import IssuerTokenVerifier
    from gateway.adminapi.login import BrowserLogin

    tokens = IssuerTokenVerifier(gateway.issuers)
    issuer = next((issuer for issuer in gateway.issuers if issuer.rules.login is not None), None)
    sessions = None
    if issuer is not None:
        ended = EndedSessions(gateway.scripts, settings.redis.prefix)
        sessions = OperatorSessions(issuer.rules, CookieSigner.of(secret), ended)
    return AdminServices(
        gate=Authorization(settings.admin, operators, auth_throttle, tokens, sessions),
        records=records,
        login=BrowserLogin(issuer, sessions) if issuer is not None and sessions is not None else None,
    )


def _records(gateway: Gateway, secret: bytes, decode: Decode) -> AdminApiServices | None:
    ledger, directory = gateway.records.ledger, gateway.records.directory
    if ledger is None or directory is None:
        return None
    return AdminApiServices(
        store=TenantStore(ledger.database, chain_key(secret)),
        audit=AuditLog(ledger.database, chain_key(secret)),
        usage=ledger.reader,
        pepper=pepper(secret),
        upgrades=ledger.upgrades,
        version=gateway.version,
        changed=directory.ring,
        services=gateway.services,
        discovery=gateway.discovery,
        registry=gateway.discovery.registry,
        decode=decode,
        queues=gateway.queues,
        plans_of_file=directory.plans_of_file,
    )
