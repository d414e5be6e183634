"""Service classes: how soon a first token is wanted."""

from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.settings.types import Branch, Name

ClassName = Literal["voice", "code", "chat", "batch"]
"""The more urgent first. The one name that a batch file's requests have is `batch`."""

Milliseconds = Annotated[float, Meta(gt=0, le=600_000)]


class ServiceClassSettings(Branch, frozen=True, kw_only=True):
    """One class."""

    ttft_ms: Annotated[Milliseconds, Meta(description="Time to the first token that the class is for.")] = 500
    late: Annotated[
        Literal["wait", "next", "demote", "reject"],
        Meta(
            description="What cannot be expected to keep that: it waits; goes to the next choice that can keep it, "
            "if any; becomes a batch request; or is turned away with a 503."
        ),
    ] = "wait"
    sheds: Annotated[
        bool,
        Meta(
            description="While a queue stands for longer than `ttft_ms`, requests wait a third of that at most, "
            "and are then turned away with a 503."
        ),
    ] = False
    models: Annotated[
        tuple[Name, ...],
        Meta(description="Patterns of models whose requests are of this class where nobody says otherwise."),
    ] = ()
    service_tiers: Annotated[
        tuple[Name, ...],
        Meta(description="Values of OpenAI's `service_tier` that ask for it; so does its name."),
    ] = ()


class VoiceClassSettings(ServiceClassSettings, frozen=True, kw_only=True):
    """Somebody is speaking."""

    ttft_ms: Annotated[Milliseconds, Meta(description="Time to the first token that the class is for.")] = 150
    late: Annotated[
        Literal["wait", "next", "demote", "reject"], Meta(description="As for `classes.chat`.")
    ] = "reject"
    sheds: Annotated[bool, Meta(description="As for `classes.chat`.")] = True


class CodeClassSettings(ServiceClassSettings, frozen=True, kw_only=True):
    """Somebody is typing."""

    ttft_ms: Annotated[Milliseconds, Meta(description="Time to the first token that the class is for.")] = 200
    late: Annotated[
        Literal["wait", "next", "demote", "reject"], Meta(description="As for `classes.chat`.")
    ] = "next"
    sheds: Annotated[bool, Meta(description="As for `classes.chat`.")] = True
    service_tiers: Annotated[tuple[Name, ...], Meta(description="As for `classes.chat`.")] = ("priority",)


class BatchClassSettings(ServiceClassSettings, frozen=True, kw_only=True):
    """Nobody waits for it: it gets what the others leave."""

    ttft_ms: Annotated[Milliseconds, Meta(description="Time to the first token that the class is for.")] = (
        2000
    )
    service_tiers: Annotated[tuple[Name, ...], Meta(description="As for `classes.chat`.")] = ("flex",)


class ServiceClassesSettings(Branch, frozen=True, kw_only=True):
    """All of them."""

    voice: Annotated[VoiceClassSettings, Meta(description="Somebody is speaking.")] = field(
        default_factory=VoiceClassSettings
    )
    code: Annotated[CodeClassSettings, Meta(description="Somebody is typing.")] = field(
        default_factory=CodeClassSettings
    )
    chat: Annotated[ServiceClassSettings, Meta(description="Somebody is reading.")] = field(
        default_factory=ServiceClassSettings
    )
    batch: Annotated[BatchClassSettings, Meta(description="Nobody waits for it.")] = field(
        default_factory=BatchClassSettings
    )
