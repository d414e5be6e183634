"""The branches of the settings tree for the usage ledger and those who are told of it."""

from typing import Annotated, Literal

from msgspec import Meta

from gateway.settings_types import Branch, HttpUrl, Identifier, Positive, Secret

Days = Annotated[int, Meta(ge=1, le=36_500)]


class UsageLedger(Branch, frozen=True, kw_only=True):
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


class Webhook(Branch, frozen=True, kw_only=True):
    """An address of the operator's that is told of usage and budgets, as standardwebhooks.com says."""

    id: Annotated[Identifier, Meta(description="Name here: letters, digits, `.`, `_`, `-`.")]
    url: Annotated[HttpUrl, Meta(description="Where events are posted. Redirects are not followed.")]
    secret: Annotated[Secret, Meta(description="Signs them: `whsec_` and 24 to 64 bytes in base64.")]
    events: Annotated[
        tuple[Literal["usage", "budget"], ...],
        Meta(description="Of what: `usage` (every tenant's hour, once it is over), `budget` (alerts)."),
    ] = ("usage", "budget")
