"""The structs that decode requests of OpenAI's Responses API.

Shapes: https://platform.openai.com/docs/api-reference/responses
"""

from typing import Annotated, Any, Literal

import msgspec


class InputTextPart(msgspec.Struct, frozen=True, tag="input_text", tag_field="type"):
    """A content part of text from the user."""

    text: str


class OutputTextPart(msgspec.Struct, frozen=True, tag="output_text", tag_field="type"):
    """A content part of text from the assistant."""

    text: str


class RefusalPart(msgspec.Struct, frozen=True, tag="refusal", tag_field="type"):
    """A content part in which the assistant refuses."""

    refusal: str


class InputImagePart(msgspec.Struct, frozen=True, tag="input_image", tag_field="type"):
    """A content part of an image."""

    image_url: str | None = None
    detail: str | None = None


class InputFilePart(msgspec.Struct, frozen=True, tag="input_file", tag_field="type"):
    """A content part of a file."""

    file_data: str | None = None
    filename: str | None = None


ContentPart = InputTextPart | OutputTextPart | RefusalPart | InputImagePart | InputFilePart


class MessageItem(msgspec.Struct, frozen=True, tag="message", tag_field="type"):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPart]


class FunctionCallItem(msgspec.Struct, frozen=True, tag="function_call", tag_field="type"):
    """A call of a function."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class FunctionCallOutputItem(msgspec.Struct, frozen=True, tag="function_call_output", tag_field="type"):
    """The result of a function call."""

    call_id: str
    output: str | list[ContentPart]


class CustomToolCallItem(msgspec.Struct, frozen=True, tag="custom_tool_call", tag_field="type"):
    """A call of a custom tool, which takes a text."""

    call_id: str
    name: str
    input: str
    namespace: str | None = None


class CustomToolCallOutputItem(msgspec.Struct, frozen=True, tag="custom_tool_call_output", tag_field="type"):
    """The result of a custom tool call."""

    call_id: str
    output: str | list[ContentPart]


class LocalShellCallItem(msgspec.Struct, frozen=True, tag="local_shell_call", tag_field="type"):
    """A call of the client's shell."""

    call_id: str
    action: dict[str, Any]


class LocalShellCallOutputItem(msgspec.Struct, frozen=True, tag="local_shell_call_output", tag_field="type"):
    """The result of a call of the client's shell."""

    output: str
    id: str
    """That of the call, where the item has no `call_id`."""
    call_id: str | None = None


class ReasoningTextPart(msgspec.Struct, frozen=True):
    """A piece of reasoning."""

    text: str


class ReasoningItem(msgspec.Struct, frozen=True, tag="reasoning", tag_field="type"):
    """The assistant's reasoning before an answer."""

    content: list[ReasoningTextPart] | None = None
    summary: list[ReasoningTextPart] | None = None
    encrypted_content: str | None = None
    """The same text, encoded, for clients that keep the conversation themselves and cannot store `content`."""


class CompactionItem(msgspec.Struct, frozen=True, tag="compaction", tag_field="type"):
    """The summary of a conversation: see compaction.py."""

    encrypted_content: str


class WebSearchCallItem(msgspec.Struct, frozen=True, tag="web_search_call", tag_field="type"):
    """A web search that OpenAI's servers made before the assistant's answer."""


class FileSearchCallItem(msgspec.Struct, frozen=True, tag="file_search_call", tag_field="type"):
    """A search in files that OpenAI's servers made before the assistant's answer."""


class CodeCallItem(msgspec.Struct, frozen=True, tag="code_interpreter_call", tag_field="type"):
    """Code that OpenAI's servers ran before the assistant's answer."""


class ImageCallItem(msgspec.Struct, frozen=True, tag="image_generation_call", tag_field="type"):
    """An image that OpenAI's servers made before the assistant's answer."""


class McpToolsItem(msgspec.Struct, frozen=True, tag="mcp_list_tools", tag_field="type"):
    """The tools of an MCP server, which OpenAI's servers asked for them."""


class McpApprovalRequestItem(msgspec.Struct, frozen=True, tag="mcp_approval_request", tag_field="type"):
    """A call of an MCP server that OpenAI's servers wanted to make."""


class McpApprovalResponseItem(msgspec.Struct, frozen=True, tag="mcp_approval_response", tag_field="type"):
    """The client's decision on such a call."""


class McpCallItem(msgspec.Struct, frozen=True, tag="mcp_call", tag_field="type"):
    """A call of an MCP server that OpenAI's servers made before the assistant's answer."""


HostedCallItem = (
    WebSearchCallItem
    | FileSearchCallItem
    | CodeCallItem
    | ImageCallItem
    | McpToolsItem
    | McpApprovalRequestItem
    | McpApprovalResponseItem
    | McpCallItem
)
"""Calls of hosted tools; models get the answers that were made with them, and not the calls."""

InputItem = (
    MessageItem
    | FunctionCallItem
    | FunctionCallOutputItem
    | CustomToolCallItem
    | CustomToolCallOutputItem
    | LocalShellCallItem
    | LocalShellCallOutputItem
    | ReasoningItem
    | CompactionItem
    | HostedCallItem
)


class FunctionTool(msgspec.Struct, frozen=True, tag="function", tag_field="type"):
    """A function of the client."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomToolFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The format of a custom tool's input: any text, or text that follows a grammar."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(msgspec.Struct, frozen=True, omit_defaults=True, tag="custom", tag_field="type"):
    """A tool of the client that takes a text."""

    name: str
    description: str | None = None
    format: CustomToolFormat | None = None


class NamespaceTool(msgspec.Struct, frozen=True, tag="namespace", tag_field="type"):
    """A group of tools."""

    name: str
    tools: list[FunctionTool | CustomTool]
    description: str | None = None


ResponsesTool = FunctionTool | CustomTool | NamespaceTool


class FunctionToolChoice(msgspec.Struct, frozen=True, tag="function", tag_field="type"):
    """The choice of one function, which the model must call."""

    name: str


class CustomToolChoice(msgspec.Struct, frozen=True, tag="custom", tag_field="type"):
    """The choice of one custom tool, which the model must call."""

    name: str


class AllowedTool(msgspec.Struct, frozen=True):
    """A tool that an AllowedToolsChoice names. Hosted tools have no name."""

    type: str
    name: str | None = None


class AllowedToolsChoice(msgspec.Struct, frozen=True, tag="allowed_tools", tag_field="type"):
    """The choice of some of the request's tools: the model may or must call one of them."""

    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


ResponsesToolChoice = (
    Literal["auto", "none", "required"] | FunctionToolChoice | CustomToolChoice | AllowedToolsChoice
)


class TextFormat(msgspec.Struct, frozen=True):
    """The `text.format` of a request: the format of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True):
    """The `text` of a request: format and verbosity of the answer."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct, frozen=True):
    """The `reasoning` of a request: effort and kind of summary."""

    effort: str | None = None
    summary: str | None = None


class ConversationReference(msgspec.Struct, frozen=True):
    """The `conversation` of a request as an object."""

    id: str


class ResponsesBody(msgspec.Struct, frozen=True):
    """The body of POST /v1/responses. `input` is decoded in items.py, `tools` and `tool_choice` in tools.py."""

    model: str
    input: str | list[msgspec.Raw] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    store: bool | None = None
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    background: bool | None = None
    conversation: str | ConversationReference | None = None
    prompt: Any = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_calls: int | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    top_logprobs: int | None = None
    user: str | None = None


TRANSLATED_FIELDS = frozenset(
    {
        *(
            "model",
            "input",
            "instructions",
            "previous_response_id",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
        ),
        *(
            "text",
            "reasoning",
            "max_output_tokens",
            "store",
            "stream",
            "metadata",
            "background",
            "conversation",
        ),
        *("include", "top_logprobs", "prompt"),
    }
)
"""Fields that are translated or refused. Others (`temperature`, `top_k`, `user`) pass unchanged."""

IGNORED_FIELDS = frozenset(
    {
        *("truncation", "max_tool_calls", "context_management", "stream_options", "client_metadata"),
        # Fields of chat completions: a response is always one answer, and has other names for the rest.
        *("n", "best_of", "messages", "max_tokens", "max_completion_tokens", "logprobs"),
    }
)
"""Fields that are dropped without an error, because a chat completion has no counterpart."""
