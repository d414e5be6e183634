"""Settings of identity providers, which issue tokens (JWT) for tenants and operators."""

from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.settings.tenants import KeyScope
from gateway.settings.types import Branch, HttpUrl, Identifier, Name, NotNegativeSeconds, Seconds, Secret

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signature algorithms with a private key; `none` and HMAC (with a key that all verifiers share) are excluded."""

Claim = Annotated[str, Meta(min_length=1, max_length=200)]


Role = Literal["viewer", "operator", "owner"]
"""The roles of operators, each with the rights of the one before: read; change tenants, plans and keys; change
operators."""


class IssuerSettings(Branch, frozen=True, kw_only=True):
    """An identity provider (OpenID Connect, OAuth 2), and the rules by which its tokens are verified."""

    issuer: Annotated[HttpUrl, Meta(description="Name of the provider, exactly as in the claim `iss`.")]
    audiences: Annotated[
        Annotated[tuple[Name, ...], Meta(min_length=1)],
        Meta(description="Accepted audiences: one of these has to be in the claim `aud`."),
    ]
    jwks_url: Annotated[
        HttpUrl | None,
        Meta(
            description="Address of the provider's public keys; by default from its "
            "/.well-known/openid-configuration."
        ),
    ] = None
    algorithms: Annotated[
        Annotated[tuple[Algorithm, ...], Meta(min_length=1)],
        Meta(description="Accepted signature algorithms: RS, PS or ES with 256, 384 or 512; EdDSA."),
    ] = ("RS256", "ES256")
    leeway_seconds: Annotated[
        NotNegativeSeconds,
        Meta(description="Accepted difference between the clocks of provider and gateway."),
    ] = 30.0
    refresh_seconds: Annotated[
        Seconds, Meta(description="Time after which the provider's keys are read again.")
    ] = 300.0
    known_keys_seconds_max: Annotated[
        NotNegativeSeconds,
        Meta(
            description="Time for which known keys are used while the provider is unreachable; then its tokens "
            "get a 503."
        ),
    ] = 3600.0


class TenantIssuerSettings(IssuerSettings, frozen=True, kw_only=True):
    """An identity provider that issues bearer tokens for tenants."""

    tenant_claim: Annotated[
        Claim,
        Meta(
            description="Claim that names the tenant, as text or as a list with one text. `a.b` is a claim inside "
            "another."
        ),
    ] = "tenant"
    tenants: Annotated[
        dict[str, Identifier],
        Meta(description="Ids of tenants by the value of the claim; empty: the value is the id."),
    ] = field(default_factory=dict)
    organisation_claim: Annotated[
        Claim | None, Meta(description="Claim that must name the tenant's organisation.")
    ] = None
    scope_claim: Annotated[
        Claim | None,
        Meta(
            description="Claim with the scopes of the token, as words in a text or as a list. Without it all "
            "tokens have the scopes `inference` and `usage`."
        ),
    ] = None
    scopes: Annotated[
        dict[str, KeyScope],
        Meta(
            description="Scopes by the words of the claim; empty: the words are `inference`, `usage` and `admin`."
        ),
    ] = field(default_factory=dict)


class LoginSettings(Branch, frozen=True, kw_only=True):
    """The login of operators in a browser: OpenID Connect's authorization code flow with PKCE.

    Register `<url>/ui/callback` at the provider as the redirect address, and `<url>/ui/` as the address after
    logout.
    """

    client_id: Annotated[Name, Meta(description="Client id of this gateway at the provider.")]
    client_secret: Annotated[
        Secret | None, Meta(description="Client secret at the provider; none for a public client.")
    ] = None
    scopes: Annotated[
        tuple[Name, ...], Meta(description="Scopes to request besides `openid`.", max_length=20)
    ] = ("profile",)
    url: Annotated[
        HttpUrl | None,
        Meta(
            description="Address at which browsers reach this listener, such as https://operators.example.com; by "
            "default the address that the browser used."
        ),
    ] = None
    session_seconds: Annotated[
        Seconds,
        Meta(description="Time after which an operator has to log in again; roles are read at each login."),
    ] = 28_800.0


class OperatorIssuerSettings(IssuerSettings, frozen=True, kw_only=True):
    """An identity provider that issues bearer tokens for operators."""

    role_claim: Annotated[
        Claim,
        Meta(
            description="Claim with the roles, as words in a text or as a list. `a.b` is a claim inside another."
        ),
    ] = "roles"
    roles: Annotated[
        dict[str, Role],
        Meta(
            description="Roles by the words of the claim; the highest counts. Empty: the words are the names of "
            "roles."
        ),
    ] = field(default_factory=dict)
    login: Annotated[
        LoginSettings | None,
        Meta(description="Login of operators to /ui in a browser; only one issuer may have it."),
    ] = None
