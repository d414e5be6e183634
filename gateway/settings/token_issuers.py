"""The branch of the settings tree that says whose tokens (JWT) are taken for API keys, and what they say."""

from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.settings.tenants import KeyScope
from gateway.settings.types import Branch, HttpUrl, Identifier, Name, NotNegativeSeconds, Seconds, Secret

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures with a private key only. `none` and HMAC (whose key would be everybody's) cannot be named."""

Claim = Annotated[str, Meta(min_length=1, max_length=200)]


Role = Literal["viewer", "operator", "owner"]
"""Of an operator. Each may what the one before it may: look; change tenants, plans and keys; change operators."""


class IssuerSettings(Branch, frozen=True, kw_only=True):
    """An identity provider (OpenID Connect, OAuth 2), and which of its tokens are good."""

    issuer: Annotated[HttpUrl, Meta(description="Its name, exactly as `iss` has it.")]
    audiences: Annotated[
        Annotated[tuple[Name, ...], Meta(min_length=1)],
        Meta(description="One of these has to be in `aud`: what its tokens for this gateway name."),
    ]
    jwks_url: Annotated[
        HttpUrl | None,
        Meta(
            description="Where its public keys are; by default where its /.well-known/openid-configuration says."
        ),
    ] = None
    algorithms: Annotated[
        Annotated[tuple[Algorithm, ...], Meta(min_length=1)],
        Meta(description="Signatures that are accepted: RS, PS or ES with 256, 384 or 512; EdDSA."),
    ] = ("RS256", "ES256")
    leeway_seconds: Annotated[
        NotNegativeSeconds, Meta(description="How far its clock and ours may be apart.")
    ] = 30.0
    refresh_seconds: Annotated[Seconds, Meta(description="Its keys are read again after this.")] = 300.0
    known_keys_seconds_max: Annotated[
        NotNegativeSeconds,
        Meta(description="How long known keys are still good while it is away; then its tokens get a 503."),
    ] = 3600.0


class TenantIssuerSettings(IssuerSettings, frozen=True, kw_only=True):
    """One whose tokens come in as bearer tokens of tenants."""

    tenant_claim: Annotated[
        Claim,
        Meta(
            description="Claim that names the tenant: a text, or a list of which one text does. `a.b`: inside."
        ),
    ] = "tenant"
    tenants: Annotated[
        dict[str, Identifier],
        Meta(description="Tenants by what the claim says; empty: it says their ids."),
    ] = field(default_factory=dict)
    organisation_claim: Annotated[
        Claim | None, Meta(description="Claim that has to name the tenant's organisation.")
    ] = None
    scope_claim: Annotated[
        Claim | None,
        Meta(
            description="Claim with what the token is for: words in a text, or a list. Without one every token is "
            "for `inference` and `usage`."
        ),
    ] = None
    scopes: Annotated[
        dict[str, KeyScope],
        Meta(description="Scopes by the claim's words; empty: they are `inference`, `usage`, `admin`."),
    ] = field(default_factory=dict)


class LoginSettings(Branch, frozen=True, kw_only=True):
    """Operators' login in a browser: OpenID Connect's authorization code flow with PKCE.

    At the provider, `<url>/ui/callback` is the address that it sends people back to, and `<url>/ui/` where they are
    after their logout.
    """

    client_id: Annotated[Name, Meta(description="What the provider calls this gateway.")]
    client_secret: Annotated[
        Secret | None, Meta(description="What it knows this gateway by; none for a public client.")
    ] = None
    scopes: Annotated[
        tuple[Name, ...], Meta(description="What is asked for besides `openid`.", max_length=20)
    ] = ("profile",)
    url: Annotated[
        HttpUrl | None,
        Meta(
            description="Where browsers reach this listener, as https://operators.example.com; by default as they "
            "name it themselves."
        ),
    ] = None
    session_seconds: Annotated[
        Seconds, Meta(description="After this a browser has to log in again; roles are read at each login.")
    ] = 28_800.0


class OperatorIssuerSettings(IssuerSettings, frozen=True, kw_only=True):
    """One whose tokens come in as bearer tokens of operators."""

    role_claim: Annotated[
        Claim, Meta(description="Claim with what somebody may do: words in a text, or a list. `a.b`: inside.")
    ] = "roles"
    roles: Annotated[
        dict[str, Role],
        Meta(description="Roles by the claim's words, the highest counts; empty: they are roles' own names."),
    ] = field(default_factory=dict)
    login: Annotated[
        LoginSettings | None, Meta(description="Lets operators log in to /ui with a browser; of one issuer.")
    ] = None
