"""The structs that decode requests of Anthropic's Messages API.

Shapes: https://platform.claude.com/docs/en/api/messages
"""

from typing import Annotated, Any, Literal

import msgspec

from gateway.web.anthropic import server_tools


class Base64Source(msgspec.Struct, frozen=True, tag="base64", tag_field="type"):
    """The bytes of an image or a document, in base64."""

    media_type: str
    data: str


class UrlSource(msgspec.Struct, frozen=True, tag="url", tag_field="type"):
    """The URL of an image, which is fetched."""

    url: str


class TextSource(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """The plain text of a document."""

    data: str


class TextBlock(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """A content block of text."""

    text: str


class ImageBlock(msgspec.Struct, frozen=True, tag="image", tag_field="type"):
    """A content block of an image."""

    source: Base64Source | UrlSource


class ContentSource(msgspec.Struct, frozen=True, tag="content", tag_field="type"):
    """The content blocks of a document."""

    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(msgspec.Struct, frozen=True, tag="document", tag_field="type"):
    """A content block of a document."""

    source: Base64Source | TextSource | ContentSource
    title: str | None = None
    context: str | None = None
    """The client's remarks on the document, beside its content."""


class SearchResultBlock(msgspec.Struct, frozen=True, tag="search_result", tag_field="type"):
    """A content block of a result of the client's own search."""

    source: str
    title: str
    content: list[TextBlock]


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use", tag_field="type"):
    """A content block of a tool call. `input` stays raw JSON, because it becomes part of the prompt."""

    id: str
    name: str
    input: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))


class ToolResultBlock(msgspec.Struct, frozen=True, tag="tool_result", tag_field="type"):
    """A content block of a tool's result."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock] | None = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking", tag_field="type"):
    """A content block of the assistant's thinking."""

    thinking: str


class RedactedThinkingBlock(msgspec.Struct, frozen=True, tag="redacted_thinking", tag_field="type"):
    """A content block of thinking that only its author can read."""


ContentBlock = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | server_tools.ServerToolUseBlock
    | server_tools.WebSearchResultBlock
    | server_tools.WebFetchResultBlock
    | server_tools.CodeResultBlock
    | server_tools.BashResultBlock
    | server_tools.EditorResultBlock
    | server_tools.ToolSearchResultBlock
)


class AnthropicMessage(msgspec.Struct, frozen=True):
    """A message of a conversation.

    The role `system` is for reminders in the middle of a conversation, as Claude Code sends them.
    """

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class AnthropicTool(msgspec.Struct, frozen=True):
    """A tool. Tools with a `type` other than `custom` are defined by Anthropic: see tools.py."""

    name: str | None = None
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None
    type: str | None = None
    display_width_px: int | None = None
    display_height_px: int | None = None


class AnthropicToolChoice(msgspec.Struct, frozen=True):
    """Which tools the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class ThinkingConfig(msgspec.Struct, frozen=True):
    """Whether the model thinks. `enabled` and `disabled` go to the chat template; otherwise the model decides."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]


class OutputFormat(msgspec.Struct, frozen=True):
    """The JSON schema that the answer has to follow."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    """The effort of the model, and the format of the answer."""

    effort: str | None = None
    format: OutputFormat | None = None


class MessageMetadata(msgspec.Struct, frozen=True):
    """The end user of a request."""

    user_id: str | None = None


class CountTokensBody(msgspec.Struct, frozen=True):
    """The body of POST /v1/messages/count_tokens: the fields that go into the prompt."""

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
    """The body of POST /v1/messages. With `max_tokens: 0` the prompt is only brought into the cache."""

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
    }
)
"""Fields that are translated or refused. Others (`temperature`, `top_k`, `min_p`) pass unchanged."""

IGNORED_FIELDS = frozenset(
    {
        # Fields of Anthropic's service that have no meaning for an engine.
        *("anthropic_beta", "betas", "cache_control", "container", "context_management", "inference_geo"),
        *("service_tier", "speed", "user_profile_id", "workspace_id", "diagnostics"),
        # Fields of chat completions: a message is one choice, and always has its usage.
        *("n", "best_of", "stream_options", "stop", "max_completion_tokens", "logprobs", "top_logprobs"),
    }
)
"""Fields that are dropped without an error, because a chat completion has no counterpart."""
