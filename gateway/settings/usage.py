"""The branches of the settings tree for the usage ledger and those who are told of it."""

import base64
import binascii
from typing import Annotated, Literal

from msgspec import Meta

from gateway.settings.types import Branch, HttpUrl, Identifier, Positive, Secret

SIGNING_PREFIX = "whsec_"
SIGNING_BYTES = (24, 64)

Days = Annotated[int, Meta(ge=1, le=36_500)]


class UsageSettings(Branch, frozen=True, kw_only=True):
    """What is kept of requests that have ended. Without a database nothing is."""

    journal_bytes_max: Annotated[
        Positive,
        Meta(
            description="What the journal in the state directory may hold while the database is away; a request "
            "takes about 300 bytes. Beyond it requests are served and not accounted for."
        ),
    ] = 1024**3
    rows_days: Annotated[Days, Meta(description="How long single requests are kept.")] = 90
    hours_days: Annotated[Days, Meta(description="How long sums by hour are kept; those by day stay.")] = 400


class WebhookSettings(Branch, frozen=True, kw_only=True):
    """An address of the operator's that is told of usage and budgets, as standardwebhooks.com says."""

    id: Annotated[Identifier, Meta(description="Name here: letters, digits, `.`, `_`, `-`.")]
    url: Annotated[HttpUrl, Meta(description="Where events are posted. Redirects are not followed.")]
    secret: Annotated[Secret, Meta(description="Signs them: `whsec_` and 24 to 64 bytes in base64.")]
    events: Annotated[
        tuple[Literal["usage", "budget"], ...],
        Meta(description="Of what: `usage` (every tenant's hour, once it is over), `budget` (alerts)."),
    ] = ("usage", "budget")


def webhook_secret(secret: str) -> bytes | None:
    """What events are signed with; None if this is not such a secret."""
    try:
        found = base64.b64decode(secret.removeprefix(SIGNING_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return None
    least, most = SIGNING_BYTES
    return found if secret.startswith(SIGNING_PREFIX) and least <= len(found) <= most else None
