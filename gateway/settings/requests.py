"""What one request may be, and whose."""

from typing import Annotated

from msgspec import Meta, field

from gateway.settings.token_issuers import TenantIssuerSettings
from gateway.settings.types import (
    Branch,
    MediaHost,
    NotNegativeCount,
    Positive,
    Ratio,
    Seconds,
)


class RetrySettings(Branch, frozen=True, kw_only=True):
    """How many requests may be sent to one more worker, before a first byte, of all together."""

    share: Annotated[
        Ratio,
        Meta(
            description="Of the requests of the last seconds: when as many were sent again, the first failure is "
            "the client's answer. Of each process."
        ),
    ] = 0.2
    at_least: Annotated[
        NotNegativeCount, Meta(description="So many are always allowed within these seconds.")
    ] = 100
    seconds: Annotated[Seconds, Meta(description="These seconds.")] = 10.0


class HedgingSettings(Branch, frozen=True, kw_only=True):
    """A request that has no first byte in time goes to a second worker, too; the first byte wins."""

    after_ms: Annotated[
        Positive | None,
        Meta(
            description="Milliseconds without a first byte. null: as long as 95 of 100 first tokens are expected "
            "to take on that worker, once it is known."
        ),
    ] = None
    prompt_tokens_max: Annotated[Positive, Meta(description="Not for longer prompts.")] = 8192


class RequestSettings(Branch, frozen=True, kw_only=True):
    """Bounds of one request."""

    body_bytes_max: Annotated[Positive, Meta(description="Largest request body.")] = 32 * 1024**2
    body_seconds_max: Annotated[Seconds, Meta(description="Longest time to send the body.")] = 30.0
    first_token_seconds_max: Annotated[
        Seconds, Meta(description="Longest wait for a worker's first byte.")
    ] = 120.0
    whole_answer_seconds_max: Annotated[
        Seconds,
        Meta(
            description="The same for an answer that comes at once, since no stream says that its first token is "
            "there; never less than that."
        ),
    ] = 600.0
    idle_seconds_max: Annotated[Seconds, Meta(description="Longest silence within an answer.")] = 60.0
    attempts_max: Annotated[Positive, Meta(description="Workers tried before the first byte.")] = 3
    retries: Annotated[RetrySettings, Meta(description="What all of them together may be tried again.")] = (
        field(default_factory=RetrySettings)
    )
    hedging: Annotated[
        HedgingSettings | None,
        Meta(
            description="A request without a first byte goes to a second worker, too, and the first one answers; "
            "null: it does not. Of the same budget as retries; charged once."
        ),
    ] = None
    repeats_max: Annotated[
        Positive,
        Meta(
            description="How often a request may be made under one `Idempotency-Key`; it is charged once, as much "
            "as the dearest time."
        ),
    ] = 3
    media_hosts: Annotated[
        tuple[MediaHost, ...],
        Meta(
            description="Hosts that images, sounds and videos are fetched from: cdn.example.com, *.example.com; "
            "workers get the content. Without any, media have to come as `data:`."
        ),
    ] = ()
    media_bytes_max: Annotated[
        Positive, Meta(description="Largest fetched media of one request, together.")
    ] = 32 * 1024**2


class AuthenticationSettings(Branch, frozen=True, kw_only=True):
    """Who is let in."""

    failures_per_minute_max: Annotated[
        Positive, Meta(description="Unknown keys from one address (IPv6: one /64) before it is told to wait.")
    ] = 60
    tokens: Annotated[
        tuple[TenantIssuerSettings, ...],
        Meta(description="Issuers whose tokens (JWT) are taken in place of keys."),
    ] = ()
