"""The parts behind the operators' listener: authorization, services of the admin API, browser login."""

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
    """The parts of the operators' listener."""

    authorization: Authorization
    api: AdminApiServices | None
    """None without a database: then there is no admin API."""
    login: "BrowserLogin | None"
    """None where no identity provider for browser logins is configured."""


def admin_services(gateway: Gateway, decode: Decode) -> AdminServices:
    """Build the parts of the operators' listener. `decode` decodes the body of a request to explain."""
    settings, secret = gateway.settings, deployment_secret(gateway.settings)
    api = _api_services(gateway, secret, decode)
    operators = None
    if api is not None:
        operators = OperatorTokenStore(store=api.store, pepper=api.pepper, upgrades=api.upgrades)
    auth_throttle = AuthThrottle(settings.authentication.failures_per_minute_max, time.monotonic)
    if not gateway.issuers:
        return AdminServices(
            authorization=Authorization(settings.admin, operators, auth_throttle), api=api, login=None
        )

    from gateway.adminapi.issuer_tokens import IssuerTokenVerifier
    from gateway.adminapi.login import BrowserLogin

    tokens = IssuerTokenVerifier(gateway.issuers)
    issuer = next((issuer for issuer in gateway.issuers if issuer.rules.login is not None), None)
    sessions = None
    if issuer is not None:
        cells = gateway.cells
        ended = (
            EndedSessions(gateway.scripts, settings.redis.prefix)
            if cells is None
            else EndedSessions(cells.scripts, cells.redis.prefix)
        )
        sessions = OperatorSessions(issuer.rules, CookieSigner.from_deployment_secret(secret), ended)
    return AdminServices(
        authorization=Authorization(settings.admin, operators, auth_throttle, tokens, sessions),
        api=api,
        login=BrowserLogin(issuer, sessions) if issuer is not None and sessions is not None else None,
    )


def _api_services(gateway: Gateway, secret: bytes, decode: Decode) -> AdminApiServices | None:
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
        changed=directory.poll_now,
        gateway_services=gateway.services,
        discovery=gateway.discovery,
        registry=gateway.discovery.registry,
        decode=decode,
        queues=gateway.queues,
        explorer=gateway.explorer,
        replica=gateway.index.index.replica,
        activity=gateway.activity,
        in_force=gateway.in_force,
        file_plans=directory.file_plans,
        file_tenants=directory.file_tenants,
    )
