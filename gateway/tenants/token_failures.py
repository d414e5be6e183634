"""Why a token opens nothing. Known also where there is nothing installed to verify one with."""


class TokenInvalid(Exception):
    """Its text says why, in words that are safe for whoever holds it."""


class NoTenantNamed(Exception):
    """It is right, and names no tenant that there is."""


class IssuerAway(Exception):
    """Whether it is good cannot be said: its issuer does not answer."""
