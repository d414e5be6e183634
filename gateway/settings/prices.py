"""What tokens cost, of models and at providers."""

from typing import Annotated

from msgspec import Meta

from gateway.settings.types import Branch, Money


class PriceSettings(Branch, frozen=True, kw_only=True):
    """What a model costs, in money per million tokens."""

    input: Annotated[Money, Meta(description="For a million prompt tokens.")]
    cached_input: Annotated[
        Money | None,
        Meta(description="For a million of those that the worker's cache had; by default `input`."),
    ] = None
    output: Annotated[Money, Meta(description="For a million output tokens.")]
