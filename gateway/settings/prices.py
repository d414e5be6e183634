"""Prices of tokens, for models and for models at providers."""

from typing import Annotated

from msgspec import Meta

from gateway.settings.types import Branch, Money


class PriceSettings(Branch, frozen=True, kw_only=True):
    """What the tokens of a model cost, in money per million tokens."""

    input: Annotated[Money, Meta(description="Price of a million prompt tokens.")]
    cached_input: Annotated[
        Money | None,
        Meta(
            description="Price of a million prompt tokens that the worker had cached; by default that of `input`."
        ),
    ] = None
    output: Annotated[Money, Meta(description="Price of a million output tokens.")]
