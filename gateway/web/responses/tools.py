"""Tools of the Responses API, translated to the functions of chat completions and back.

    function f                             f(..)
    custom t                               t({"input": ".."}): its text is a function's only argument
    namespace n of function g, custom u    n__g(..), n__u({"input": ".."})

A call is returned to the client under the tool's own name, as an item of the tool's own type. No engine constrains
a function's text to a grammar, so the grammar is written into the function's description, for the model.

Hosted tools run on OpenAI's servers, or have item types of their own. A model can answer without them, so they are
left out; a `tool_choice` that requires one is refused.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.web.omitted_tools import tool_not_run
from gateway.web.responses import wire

Json = dict[str, Any]

INPUT = "input"
"""The name of the only argument of a function that represents a tool that takes a text."""
NAMESPACE_SEPARATOR = "__"
TEXT_PARAMETERS: Json = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}

HOSTED_TOOLS = (
    "apply_patch",
    "code_interpreter",
    "computer",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
)
"""Prefixes of the types of hosted tools; some types end with a version."""


class ClientTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool under its name in the client's request."""

    name: str
    namespace: str | None = None
    takes_text: bool = False
    """Whether the tool takes a text, where functions take arguments."""

    @property
    def item_type(self) -> str:
        """The type of an item that calls the tool."""
        return "custom_tool_call" if self.takes_text else "function_call"


class ChatTools:
    """The tools of a request as functions of a chat.

    Raises BadRequest for a malformed tool, and for two tools of the same function name.
    """

    def __init__(self, given: Sequence[Json] | None) -> None:
        self.offered: list[wire.ResponsesTool] = []
        """The tools of the request without the omitted ones."""
        self.omitted: list[str] = []
        """The types of the omitted hosted tools."""
        self._functions: list[tuple[str, Json]] = []
        self._tools: dict[str, ClientTool] = {}
        for at, tool in enumerate(given or ()):
            if _is_hosted(tool.get("type")):
                self.omitted.append(tool["type"])
            else:
                self._offer(at, tool)

    def _offer(self, at: int, given: Json) -> None:
        """Add tool number `at` of the request."""
        offered = _decoded(given, wire.ResponsesTool, f"tools[{at}]")
        self.offered.append(offered)
        for position, group_description, namespace, tool in _flattened(at, offered):
            name = function_name(tool.name, namespace)
            client_tool = ClientTool(
                name=tool.name, namespace=namespace, takes_text=isinstance(tool, wire.CustomTool)
            )
            if self._tools.setdefault(name, client_tool) != client_tool:
                raise BadRequest(f"{position}: there is another tool {name[:100]!r}.", param=position)
            self._functions.append((name, _function(name, group_description, tool)))

    def chat_fields(self, given: str | Json | None) -> Json:
        """Return `tools` and `tool_choice` of the chat request. Raises BadRequest for an invalid choice.

        `given`: the `tool_choice` of the request.
        """
        choice = self._choice(given)
        if self.omitted and not self._functions and choice == "required":
            raise tool_not_run(self.omitted[0])
        functions, chosen = self._functions, choice
        if isinstance(choice, wire.AllowedToolsChoice):
            # No engine has such a choice. So the other tools are not offered, and the model cannot call them.
            functions, chosen = self._allowed(choice), choice.mode
        if not functions:
            return {}
        chat: Json = {"tools": [function for _, function in functions]}
        if isinstance(chosen, wire.FunctionToolChoice | wire.CustomToolChoice):
            chat["tool_choice"] = {"type": "function", "function": {"name": chosen.name}}
        elif chosen is not None:
            chat["tool_choice"] = chosen
        return chat

    def find(self, function: str) -> ClientTool:
        """Return the tool that a function represents; a name that the model made up is a function of that name."""
        return self._tools.get(function) or ClientTool(name=function)

    def _choice(self, given: str | Json | None) -> wire.ResponsesToolChoice | None:
        kind = given.get("type") if isinstance(given, dict) else None
        if _is_hosted(kind):
            raise tool_not_run(str(kind))
        choice: wire.ResponsesToolChoice | None = _decoded(
            given, wire.ResponsesToolChoice | None, "tool_choice"
        )
        return choice

    def _allowed(self, choice: wire.AllowedToolsChoice) -> list[tuple[str, Json]]:
        hosted = [tool.type for tool in choice.tools if _is_hosted(tool.type)]
        names = {tool.name for tool in choice.tools if tool.type not in hosted}
        if not choice.tools or not names <= self._tools.keys():
            raise BadRequest(
                "tool_choice allows tools that are not in tools, or none.", param="tool_choice.tools"
            )
        if not names and choice.mode == "required":
            raise tool_not_run(hosted[0])
        return [(name, function) for name, function in self._functions if name in names]


def function_name(name: str, namespace: str | None) -> str:
    """Return the name of a tool's function in a chat."""
    if namespace is None:
        return name
    return namespace + ("" if namespace.endswith(NAMESPACE_SEPARATOR) else NAMESPACE_SEPARATOR) + name


def input_text_of(arguments: str) -> str:
    """Return the text in the arguments of a tool that takes a text; the raw arguments if they are cut short."""
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    text = given.get(INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


def arguments_with_text(text: str) -> str:
    """Return a function's arguments that hold this text."""
    return msgspec.json.encode({INPUT: text}).decode()


def _is_hosted(kind: Any) -> bool:
    return isinstance(kind, str) and kind.startswith(HOSTED_TOOLS)


def _decoded(given: Any, kind: Any, position: str) -> Any:
    """Return a value of the request as `kind`. Raises BadRequest that names the field."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as err:
        text, _, path = str(err).partition(" - at `$")
        where = position + path.rstrip("`")
        raise BadRequest(f"{where}: {text}.", param=where) from err


def _flattened(
    at: int, tool: wire.ResponsesTool
) -> Iterator[tuple[str, str | None, str | None, wire.FunctionTool | wire.CustomTool]]:
    """Yield each tool of an entry with its position in the request and its namespace's description and name."""
    if not isinstance(tool, wire.NamespaceTool):
        yield f"tools[{at}]", None, None, tool
        return
    for number, inner in enumerate(tool.tools):
        # The description of a namespace is given once, with its first tool.
        yield f"tools[{at}].tools[{number}]", None if number else tool.description, tool.name, inner


def _function(name: str, group_description: str | None, tool: wire.FunctionTool | wire.CustomTool) -> Json:
    lines = [group_description, tool.description]
    function: Json = {"name": name}
    if isinstance(tool, wire.CustomTool):
        function["parameters"] = TEXT_PARAMETERS
        form = tool.format
        if form is not None and form.definition is not None:
            lines.append(f"Its input follows this {form.syntax or 'lark'} grammar:\n{form.definition}")
    else:
        function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
        if tool.strict is not None:
            function["strict"] = tool.strict
    if description := "\n".join(line for line in lines if line is not None):
        function["description"] = description
    return {"type": "function", "function": function}
