"""Calls of tools that Anthropic's servers run, in a conversation that began there.

    assistant [server_tool_use s1, web_search_tool_result s1, text]
        ->  assistant, with a tool call s1;  tool s1: the result as JSON;  assistant: the text

A model reads them as calls of any other tool. What only Anthropic's servers can read is left out of results.
"""

from typing import Any

import msgspec


class ServerToolUseBlock(msgspec.Struct, frozen=True, tag="server_tool_use", tag_field="type"):
    """A content block of a call that Anthropic's servers ran."""

    id: str
    name: str
    input: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))


class ServerToolResult(msgspec.Struct, frozen=True):
    """The result of such a call, which is in the assistant's turn, too."""

    tool_use_id: str
    content: Any = None


class WebSearchResultBlock(ServerToolResult, frozen=True, tag="web_search_tool_result", tag_field="type"):
    """A content block of found web pages."""


class WebFetchResultBlock(ServerToolResult, frozen=True, tag="web_fetch_tool_result", tag_field="type"):
    """A content block of a web page."""


class CodeResultBlock(ServerToolResult, frozen=True, tag="code_execution_tool_result", tag_field="type"):
    """A content block of what code has printed."""


class BashResultBlock(ServerToolResult, frozen=True, tag="bash_code_execution_tool_result", tag_field="type"):
    """A content block of what a shell command has printed."""


class EditorResultBlock(
    ServerToolResult, frozen=True, tag="text_editor_code_execution_tool_result", tag_field="type"
):
    """A content block of a viewed or changed file."""


class ToolSearchResultBlock(ServerToolResult, frozen=True, tag="tool_search_tool_result", tag_field="type"):
    """A content block of found tools."""


def readable(content: Any) -> Any:
    """Return the content of a result without encrypted fields and base64 data."""
    if isinstance(content, list):
        return [readable(item) for item in content]
    if not isinstance(content, dict):
        return content
    binary = content.get("type") == "base64"
    return {
        name: readable(value)
        for name, value in content.items()
        if not name.startswith("encrypted_") and not (binary and name == "data")
    }
