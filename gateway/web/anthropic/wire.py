"""What is read of a body of the Messages API. Shapes: https://platform.claude.com/docs/en/api/messages"""

from typing import Annotated, Any, Literal

import msgspec


class Base64Source(msgspec.Struct, frozen=True, tag="base64", tag_field="type"):
    """Bytes of a medium."""

    media_type: str
    data: str


class UrlSource(msgspec.Struct, frozen=True, tag="url", tag_field="type"):
    """A medium that the worker fetches."""

    url: str


class TextSource(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """A document that is plain text."""

    data: str


class TextBlock(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    text: str


class ImageBlock(msgspec.Struct, frozen=True, tag="image", tag_field="type"):
    source: Base64Source | UrlSource


class ContentSource(msgspec.Struct, frozen=True, tag="content", tag_field="type"):
    """A document that is made of blocks."""

    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(msgspec.Struct, frozen=True, tag="document", tag_field="type"):
    """`context`: what is said of it, beside what it says."""

    source: Base64Source | TextSource | ContentSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(msgspec.Struct, frozen=True, tag="search_result", tag_field="type"):
    """What the client's own search has found."""

    source: str
    title: str
    content: list[TextBlock]


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use", tag_field="type"):
    """`input` stays as it came: it goes into the prompt."""

    id: str
    name: str
    input: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))


class ToolResultBlock(msgspec.Struct, frozen=True, tag="tool_result", tag_field="type"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock] | None = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking", tag_field="type"):
    thinking: str


class RedactedThinkingBlock(msgspec.Struct, frozen=True, tag="redacted_thinking", tag_field="type"):
    """ThinkingConfig that only its author can read."""


ContentBlock = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
)


class AnthropicMessage(msgspec.Struct, frozen=True):
    """`system`: a reminder in the middle of a conversation, as Claude Code sends it."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class AnthropicTool(msgspec.Struct, frozen=True):
    """A tool of the client's own. Those that Anthropic's servers run have another `type`."""

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None
    type: str | None = None


class AnthropicToolChoice(msgspec.Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class ThinkingConfig(msgspec.Struct, frozen=True):
    """Only `disabled` and `enabled` are for a template to know; what else there is leaves it to the model."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]


class OutputFormat(msgspec.Struct, frozen=True):
    """A schema that the answer has to follow."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    effort: str | None = None
    format: OutputFormat | None = None


class MessageMetadata(msgspec.Struct, frozen=True):
    user_id: str | None = None


class CountTokensBody(msgspec.Struct, frozen=True):
    """POST /v1/messages/count_tokens: what goes into the prompt."""

    model: str
    messages: list[AnthropicMessage]
    system: str | list[TextBlock] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    mcp_servers: list[Any] | None = None


class MessagesBody(CountTokensBody, frozen=True, kw_only=True):
    """POST /v1/messages. `max_tokens`: 0 wants the prompt in a cache, and no answer."""

    max_tokens: Annotated[int, msgspec.Meta(ge=0)]
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: MessageMetadata | None = None


TRANSLATED_FIELDS = frozenset(
    {
        *(
            "model",
            "messages",
            "system",
            "tools",
            "tool_choice",
            "thinking",
            "output_config",
            "output_format",
        ),
        *("mcp_servers", "max_tokens", "stop_sequences", "stream", "metadata"),
        # Of Anthropic's service, and of no meaning to an engine.
        *("anthropic_beta", "betas", "cache_control", "container", "context_management", "inference_geo"),
        *("service_tier", "speed", "user_profile_id", "workspace_id", "diagnostics"),
        # One answer comes, and its usage is counted anyway.
        *("n", "best_of", "stream_options", "stop", "max_completion_tokens", "logprobs", "top_logprobs"),
    }
)
"""Fields that are translated or have no counterpart. Others (`temperature`, `top_k`, `min_p`) pass as they are."""
