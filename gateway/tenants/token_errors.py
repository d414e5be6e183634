"""Errors of token verification, importable without the packages that verify tokens."""


class TokenInvalid(Exception):
    """The token is not valid; the message has the reason, which its holder may read."""


class NoTenantNamed(Exception):
    """The token is valid but names no existing tenant."""


class IssuerUnavailable(Exception):
    """The token cannot be verified because its issuer does not answer."""
