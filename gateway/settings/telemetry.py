"""Settings of telemetry: metrics, traces, logs, and the records of single requests."""

from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.settings.types import Branch, FilePath, HttpUrl, Ratio, Seconds

RequestLabel = Literal["tenant", "model", "class", "code"]


class MetricsSettings(Branch, frozen=True, kw_only=True):
    """The size of the metrics page."""

    pairs_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Largest number of pairs of tenant and model with their own series. Requests of further "
            "tenants are counted together, under the tenant `*`.",
        ),
    ] = 4096
    tenant_histograms: Annotated[
        bool,
        Meta(
            description="Whether histograms of requests also have the label `tenant`, which adds about 70 lines to "
            "every scrape for each tenant, service class and model."
        ),
    ] = False
    gen_ai: Annotated[
        bool,
        Meta(
            description="Whether OpenTelemetry's GenAI metrics are also exported: "
            "`gen_ai_server_request_duration_seconds`, `gen_ai_server_time_to_first_token_seconds`, "
            "`gen_ai_server_time_per_output_token_seconds` and `gen_ai_client_token_usage`."
        ),
    ] = False
    dropped_labels: Annotated[
        tuple[RequestLabel, ...],
        Meta(
            description="Labels to omit from metrics of finished requests (`tenant`, `model`, `class`, `code`). "
            "Series that differ only in these are added up."
        ),
    ] = ()


class RequestDetailSettings(Branch, frozen=True, kw_only=True):
    """The requests that each gateway keeps in detail, without prompts and answers."""

    kept_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="Number of latest requests that each gateway keeps of each kind (failed, slow, "
            "refused, others), at 2 kB each. 0: none.",
        ),
    ] = 500
    slow_seconds: Annotated[
        Seconds,
        Meta(
            description="Duration from which a request counts as slow. A request that misses its class's target "
            "for the first token also counts as slow."
        ),
    ] = 30.0


class TelemetrySettings(Branch, frozen=True, kw_only=True):
    """Metrics, traces and logs."""

    metrics: Annotated[MetricsSettings, Meta(description="The metrics page.")] = field(
        default_factory=MetricsSettings
    )
    requests: Annotated[
        RequestDetailSettings, Meta(description="Finished requests that are kept in detail.")
    ] = field(default_factory=RequestDetailSettings)
    otlp_endpoint: Annotated[
        HttpUrl | None,
        Meta(description="Address of the OTLP/HTTP collector for traces, such as http://host:4318."),
    ] = None
    sample_ratio: Annotated[
        Ratio,
        Meta(description="Share of requests that are traced, unless the caller's `traceparent` decides."),
    ] = 0.1
    trace_slow_and_failed: Annotated[
        bool,
        Meta(
            description="Whether every slow or failed request is also traced. Since this is known only at its end, "
            "the worker does not trace it."
        ),
    ] = True
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Lowest level of messages that are logged."),
    ] = "info"
    log_format: Annotated[
        Literal["auto", "text", "json"],
        Meta(description="Format of log lines; `auto`: text on a terminal, JSON elsewhere."),
    ] = "auto"
    access_log: Annotated[
        FilePath | None,
        Meta(
            description="File for the access log, with a JSON line for each request of a tenant: status, model, "
            "worker, times and tokens, without the content of requests. `-`: standard output."
        ),
    ] = None
