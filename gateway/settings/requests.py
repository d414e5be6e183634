"""Settings of single requests: bounds, retries, hedging, media, and authentication."""

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
    """The retry budget: how many requests may be sent to another worker after a failure before the first byte."""

    share: Annotated[
        Ratio,
        Meta(
            description="Retries that each gateway process allows, as a share of the requests of the last "
            "`seconds`. Beyond it the client gets the first failure."
        ),
    ] = 0.2
    at_least: Annotated[
        NotNegativeCount, Meta(description="Number of retries that is always allowed within `seconds`.")
    ] = 100
    seconds: Annotated[Seconds, Meta(description="Length of the time window of the retry budget.")] = 10.0


class HedgingSettings(Branch, frozen=True, kw_only=True):
    """Hedging: a request without a first byte in time is also sent to a second worker; the first answer wins."""

    after_ms: Annotated[
        Positive | None,
        Meta(
            description="Milliseconds without a first byte after which the request is sent to a second worker. "
            "null: the time within which 95 % of first tokens are expected from the first worker, once that is "
            "known."
        ),
    ] = None
    prompt_tokens_max: Annotated[
        Positive, Meta(description="Requests with longer prompts are not hedged.")
    ] = 8192


class RequestSettings(Branch, frozen=True, kw_only=True):
    """Bounds of one request, and how it is retried."""

    body_bytes_max: Annotated[Positive, Meta(description="Largest size of a request body.")] = 32 * 1024**2
    body_seconds_max: Annotated[
        Seconds,
        Meta(
            description="Longest time in which a client may send the body; for a file, a form or a message batch, "
            "the longest pause while it is sent."
        ),
    ] = 30.0
    first_token_seconds_max: Annotated[
        Seconds, Meta(description="Longest wait for the first byte of a worker's answer.")
    ] = 120.0
    whole_answer_seconds_max: Annotated[
        Seconds,
        Meta(
            description="Longest wait for an answer that is not streamed; at least `first_token_seconds_max`."
        ),
    ] = 600.0
    idle_seconds_max: Annotated[
        Seconds, Meta(description="Longest time without a byte within an answer.")
    ] = 60.0
    attempts_max: Annotated[
        Positive,
        Meta(description="Largest number of workers to which one request is sent before the first byte."),
    ] = 3
    retries: Annotated[RetrySettings, Meta(description="Budget for retries of all requests together.")] = (
        field(default_factory=RetrySettings)
    )
    hedging: Annotated[
        HedgingSettings | None,
        Meta(
            description="Send a request without a first byte to a second worker as well; the first answer wins. "
            "Counts against the retry budget; the tenant is charged once. null: no hedging, since it computes 2.5 "
            "% of the prompts twice even if no worker stalls. If one of four workers stalls for one second in "
            "five, hedging reduces the TTFT's p99 from 437 to 163 ms, and its p99.9 from 1,130 to 237 ms."
        ),
    ] = None
    repeats_max: Annotated[
        Positive,
        Meta(
            description="How often a request with the same `Idempotency-Key` may be sent; each is computed and "
            "charged separately."
        ),
    ] = 3
    pass_fields: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=100)], ...],
        Meta(
            description="Names of further request fields that pass from tenants to workers, such as "
            "`mm_processor_kwargs`. By default the fields of OpenAI's API pass, and those fields of engines that "
            "control sampling, length and format of an answer. Fields that the gateway sets itself never pass."
        ),
    ] = ()
    media_hosts: Annotated[
        tuple[MediaHost, ...],
        Meta(
            description="Hosts from which the gateway fetches images, audio and video for workers, such as "
            "cdn.example.com or *.example.com. If empty, requests must contain media as `data:` URLs."
        ),
    ] = ()
    media_bytes_max: Annotated[
        Positive, Meta(description="Largest total size of the media that are fetched for one request.")
    ] = 32 * 1024**2


class AuthenticationSettings(Branch, frozen=True, kw_only=True):
    """Authentication of tenants."""

    failures_per_minute_max: Annotated[
        Positive,
        Meta(description="Unknown keys a minute from one address (IPv6: one /64) before it gets a 429."),
    ] = 60
    tokens: Annotated[
        tuple[TenantIssuerSettings, ...],
        Meta(description="Identity providers whose tokens (JWT) are accepted instead of API keys."),
    ] = ()
