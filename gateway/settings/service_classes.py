"""Settings of the service classes: how soon a request needs its first token."""

from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.settings.types import Branch, Name

ClassName = Literal["voice", "code", "chat", "batch"]
"""The names of the service classes, the most urgent first. Requests of batch files are always of class `batch`."""

Milliseconds = Annotated[float, Meta(gt=0, le=600_000)]


class ServiceClassSettings(Branch, frozen=True, kw_only=True):
    """One service class; the defaults are those of `chat`, where a person reads the answer."""

    ttft_ms: Annotated[Milliseconds, Meta(description="Target for the time to the first token (TTFT).")] = 500
    late: Annotated[
        Literal["wait", "next", "demote", "reject"],
        Meta(
            description="Treatment of a request that is expected to miss the target. `wait`: it waits. Else it "
            "goes to the next best worker that can meet the target; if there is none, with `next` it waits, with "
            "`demote` it becomes a batch request, with `reject` it is refused with a 503."
        ),
    ] = "wait"
    sheds: Annotated[
        bool,
        Meta(
            description="Shed load: once the queue has not been empty for longer than `ttft_ms`, each request "
            "waits for at most a third of `ttft_ms` and is then refused with a 503."
        ),
    ] = False
    models: Annotated[
        tuple[Name, ...],
        Meta(description="Patterns of models; their requests have this class if nothing else names a class."),
    ] = ()
    service_tiers: Annotated[
        tuple[Name, ...],
        Meta(
            description="Values of OpenAI's `service_tier` that select this class, besides the name of the class."
        ),
    ] = ()


class VoiceClassSettings(ServiceClassSettings, frozen=True, kw_only=True):
    """The service class `voice`, where the answer is spoken."""

    ttft_ms: Annotated[Milliseconds, Meta(description="As `classes.chat.ttft_ms`.")] = 150
    late: Annotated[
        Literal["wait", "next", "demote", "reject"], Meta(description="As `classes.chat.late`.")
    ] = "reject"
    sheds: Annotated[bool, Meta(description="As `classes.chat.sheds`.")] = True


class CodeClassSettings(ServiceClassSettings, frozen=True, kw_only=True):
    """The service class `code`, where the answer completes what a person is typing."""

    ttft_ms: Annotated[Milliseconds, Meta(description="As `classes.chat.ttft_ms`.")] = 200
    late: Annotated[
        Literal["wait", "next", "demote", "reject"], Meta(description="As `classes.chat.late`.")
    ] = "next"
    sheds: Annotated[bool, Meta(description="As `classes.chat.sheds`.")] = True
    service_tiers: Annotated[tuple[Name, ...], Meta(description="As `classes.chat.service_tiers`.")] = (
        "priority",
    )


class BatchClassSettings(ServiceClassSettings, frozen=True, kw_only=True):
    """The service class `batch`, which uses only the capacity that the other classes leave."""

    ttft_ms: Annotated[Milliseconds, Meta(description="As `classes.chat.ttft_ms`.")] = 2000
    service_tiers: Annotated[tuple[Name, ...], Meta(description="As `classes.chat.service_tiers`.")] = (
        "flex",
    )


class ServiceClassesSettings(Branch, frozen=True, kw_only=True):
    """All service classes."""

    voice: Annotated[VoiceClassSettings, Meta(description="Requests whose answers are spoken.")] = field(
        default_factory=VoiceClassSettings
    )
    code: Annotated[CodeClassSettings, Meta(description="Requests that complete code while it is typed.")] = (
        field(default_factory=CodeClassSettings)
    )
    chat: Annotated[ServiceClassSettings, Meta(description="Requests whose answers a person reads.")] = field(
        default_factory=ServiceClassSettings
    )
    batch: Annotated[BatchClassSettings, Meta(description="Requests that nothing waits for.")] = field(
        default_factory=BatchClassSettings
    )
