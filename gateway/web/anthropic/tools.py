"""Tools of the Messages API, translated to the functions of chat completions.

    custom                                a function
    bash_*, text_editor_*, computer_*,    a function with the schema that Anthropic's models have for the type;
    memory_*                              the client runs the tool
    web_search_*, code_execution_*, ..    left out: Anthropic's servers run them; a model can answer without them

A `tool_choice` that requires an omitted tool is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.domain.errors import BadRequest
from gateway.web.anthropic import wire
from gateway.web.omitted_tools import tool_not_run

Json = dict[str, Any]

HOSTED_TOOLS = (
    "advisor_",
    "browser_toolset_",
    "code_execution_",
    "computer_toolset_",
    "mcp_toolset",
    "tool_search_tool_",
    "web_fetch_",
    "web_search_",
)
"""Prefixes of the tool types without a function: Anthropic's servers run them, or each is many tools."""

_TEXT: Json = {"type": "string"}
_NUMBER: Json = {"type": "integer"}
_POINT: Json = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}


def _commands(names: Sequence[str], **more: Json) -> Json:
    """Return the schema of a tool with one of these as its `command`, and the fields that its commands take."""
    properties = {"command": {"type": "string", "enum": list(names)}, **more}
    return {"type": "object", "properties": properties, "required": ["command"]}


_FILE_COMMANDS = ("view", "create", "str_replace", "insert")
_FILE_FIELDS = {
    "path": _TEXT,
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": _NUMBER,
    "insert_text": _TEXT,
    "view_range": _POINT,
}
_ACTIONS = (
    *("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click"),
    *("double_click", "triple_click", "left_mouse_down", "left_mouse_up", "hold_key", "scroll", "wait"),
    *("screenshot", "cursor_position", "zoom"),
)

CLIENT_TOOLS: Mapping[str, tuple[str, Json]] = {
    "bash_": (
        "Run a command in a bash shell that keeps its state between calls; `restart` starts a new shell.",
        {"type": "object", "properties": {"command": _TEXT, "restart": {"type": "boolean"}}},
    ),
    "text_editor_": (
        "View, create and edit text files. `view` takes a path and optionally a view_range of lines, `create` a "
        "path and file_text, `str_replace` a path, old_str and new_str, `insert` a path, insert_line and the text.",
        _commands((*_FILE_COMMANDS, "undo_edit"), **_FILE_FIELDS),
    ),
    "memory_": (
        "Read and write files under /memories, which are kept between conversations.",
        _commands((*_FILE_COMMANDS, "delete", "rename"), **_FILE_FIELDS, old_path=_TEXT, new_path=_TEXT),
    ),
    "computer_": (
        "Use mouse, keyboard and screenshots of a display. Coordinates are pixels [x, y] from the top left.",
        {
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": list(_ACTIONS)},
                "coordinate": _POINT,
                "start_coordinate": _POINT,
                "text": _TEXT,
                "duration": {"type": "number"},
                "scroll_direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
                "scroll_amount": _NUMBER,
                "region": {"type": "array", "items": _NUMBER, "minItems": 4, "maxItems": 4},
            },
            "required": ["action"],
        },
    ),
}
"""The function (description and schema) of each tool type that the client runs, by prefix of the type."""


def tool_fields(read: wire.CountTokensBody) -> tuple[Json, list[str]]:
    """Return `tools` and `tool_choice` of the chat request, and the types of the tools that are left out.

    Raises BadRequest for a malformed or unknown tool, and for a choice that requires an omitted tool.
    """
    chat: Json = {}
    hosted = {str(tool.name): str(tool.type) for tool in read.tools or () if _is_hosted(tool)}
    functions = [_function(at, tool) for at, tool in enumerate(read.tools or ()) if not _is_hosted(tool)]
    choice = read.tool_choice
    if choice is not None and hosted and (choice.name in hosted or (choice.type == "any" and not functions)):
        raise tool_not_run(hosted.get(choice.name or "") or next(iter(hosted.values())))
    if functions:
        chat["tools"] = functions
        if choice is not None:
            chat["tool_choice"] = _tool_choice(choice)
            if choice.disable_parallel_tool_use:
                chat["parallel_tool_calls"] = False
    return chat, list(hosted.values())


def _is_hosted(tool: wire.AnthropicTool) -> bool:
    return tool.type is not None and tool.type.startswith(HOSTED_TOOLS)


def _function(index: int, tool: wire.AnthropicTool) -> Json:
    """Return tool number `index` as a function."""
    where = f"tools[{index}]"
    if tool.name is None:
        raise BadRequest(f"{where}: a tool must have a name.", param=f"{where}.name")
    description, schema = tool.description, tool.input_schema
    if tool.type not in (None, "custom"):
        known = [of_type for start, of_type in CLIENT_TOOLS.items() if str(tool.type).startswith(start)]
        if not known:
            raise BadRequest(f"{where}: a tool of type {tool.type!r} is not supported.", param=where)
        description, schema = known[0]
        if tool.display_width_px is not None:
            description += f" The display has {tool.display_width_px} x {tool.display_height_px} pixels."
    if schema is None:
        raise BadRequest(f"{where}: a tool without input_schema is not supported.", param=where)
    function: Json = {"name": tool.name, "parameters": schema}
    if description is not None:
        function["description"] = description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _tool_choice(choice: wire.AnthropicToolChoice) -> str | Json:
    if choice.type == "tool":
        if choice.name is None:
            raise BadRequest("tool_choice must name a tool.", param="tool_choice.name")
        return {"type": "function", "function": {"name": choice.name}}
    return {"auto": "auto", "any": "required", "none": "none"}[choice.type]
