"""Settings of the usage ledger and of webhooks."""

import base64
import binascii
from typing import Annotated, Literal

from msgspec import Meta

from gateway.settings.types import Branch, HttpUrl, Identifier, Positive, Secret

SIGNING_PREFIX = "whsec_"
SIGNING_BYTES = (24, 64)

Days = Annotated[int, Meta(ge=1, le=36_500)]


class UsageSettings(Branch, frozen=True, kw_only=True):
    """The usage ledger, which records finished requests. Without a database nothing is recorded."""

    journal_bytes_max: Annotated[
        Positive,
        Meta(
            description="Largest size of the journal in the state directory, which keeps usage while the database "
            "is unreachable. A request takes about 300 bytes. Beyond the bound, requests are served but not "
            "recorded."
        ),
    ] = 1024**3
    rows_days: Annotated[Days, Meta(description="Days for which rows of single requests are kept.")] = 90
    hours_days: Annotated[
        Days, Meta(description="Days for which sums by hour are kept; sums by day are kept for ever.")
    ] = 400


class WebhookSettings(Branch, frozen=True, kw_only=True):
    """A webhook that receives events on usage and budgets, in the format of standardwebhooks.com."""

    id: Annotated[Identifier, Meta(description="Id of the webhook: letters, digits, `.`, `_`, `-`.")]
    url: Annotated[
        HttpUrl, Meta(description="Address to which events are posted. Redirects are not followed.")
    ]
    secret: Annotated[
        Secret, Meta(description="Secret that signs events: `whsec_` and 24 to 64 bytes in base64.")
    ]
    events: Annotated[
        tuple[Literal["usage", "budget"], ...],
        Meta(
            description="Kinds of events: `usage` (the usage of each tenant in each hour), `budget` (alerts of "
            "limits)."
        ),
    ] = ("usage", "budget")


def webhook_secret(secret: str) -> bytes | None:
    """Return the key that signs events, decoded; None if the text is not a webhook secret."""
    try:
        found = base64.b64decode(secret.removeprefix(SIGNING_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return None
    bytes_min, bytes_max = SIGNING_BYTES
    return found if secret.startswith(SIGNING_PREFIX) and bytes_min <= len(found) <= bytes_max else None
