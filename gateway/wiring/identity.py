"""Makes the verifiers of identity providers' tokens: those of tenants and those of operators."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import aiohttp

from gateway.concurrency.loop_supervisor import LoopSupervisor
from gateway.settings.tree import Settings
from gateway.settings.types import SettingsProblem

if TYPE_CHECKING:
    from gateway.settings.token_issuers import OperatorIssuerSettings
    from gateway.tenants.token_issuer import Issuer
    from gateway.tenants.token_verifier import TokenVerifier


def token_verifier(
    settings: Settings, stack: AsyncExitStack, supervisor: LoopSupervisor
) -> "TokenVerifier | None":
    """Return the verifier of tenants' tokens; None where the settings name no issuer. Raises SettingsProblem."""
    if not settings.authentication.tokens:
        return None
    try:
        from gateway.tenants.token_verifier import TokenVerifier
    except ModuleNotFoundError as err:
        raise SettingsProblem(
            f"$.authentication.tokens: {err.name} is not installed; pip install 'radixgate[oidc]'"
        ) from err
    http = aiohttp.ClientSession()
    stack.push_async_callback(http.close)
    verifier = TokenVerifier.of(settings.authentication.tokens, http)
    stack.callback(verifier.close)
    for name, loop in verifier.loops():
        supervisor.start(name, loop)
    return verifier


def operator_issuers(
    settings: Settings, stack: AsyncExitStack, supervisor: LoopSupervisor
) -> "Sequence[Issuer[OperatorIssuerSettings]]":
    """Return the issuers of operators' tokens, with their signing keys kept current. Raises SettingsProblem."""
    if not settings.admin.issuers:
        return ()
    try:
        from gateway.tenants.token_issuer import Issuer
    except ModuleNotFoundError as err:
        raise SettingsProblem(
            f"$.admin.issuers: {err.name} is not installed; pip install 'radixgate[oidc]'"
        ) from err
    http = aiohttp.ClientSession()
    stack.push_async_callback(http.close)
    issuers = [Issuer(rules, http) for rules in settings.admin.issuers]
    for issuer in issuers:
        stack.callback(issuer.close)
        supervisor.start(f"operators' keys of {issuer.rules.issuer}", issuer.run)
    return issuers
