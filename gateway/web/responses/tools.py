"""ChatTools of the Responses API as the functions that a chat has.

    function f                             f(..)
    custom t                               t({"input": ".."}): its text is a function's only argument
    namespace n of function g, custom u    n__g(..), n__u({"input": ".."})

What is called goes back under its own name, as the kind of item that it is. No engine holds a function's text to a
grammar: the model is told of it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.web.responses import wire

Json = dict[str, Any]

INPUT = "input"
BETWEEN = "__"
TEXT_ALONE: Json = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """`takes_text`: it takes a text, where functions take arguments."""

    name: str
    namespace: str | None = None
    takes_text: bool = False

    @property
    def kind(self) -> str:
        """The type of an item that calls it."""
        return "custom_tool_call" if self.takes_text else "function_call"


class ChatTools:
    """Those of a request. Raises BadRequest where a function would stand for two of them."""

    def __init__(self, given: Sequence[wire.ResponsesTool] | None) -> None:
        self._functions: list[tuple[str, Json]] = []
        self._tools: dict[str, ClientTool] = {}
        for place, about, namespace, tool in _each(given or ()):
            name = function_name(tool.name, namespace)
            here = Tool(name=tool.name, namespace=namespace, takes_text=isinstance(tool, wire.CustomTool))
            if self._tools.setdefault(name, here) != here:
                raise BadRequest(f"{place}: there is another tool {name[:100]!r}.", param=place)
            self._functions.append((name, _function(name, about, tool)))

    def chat(self, choice: wire.ResponsesToolChoice | None) -> Json:
        """The fields of a chat. Raises BadRequest for what cannot be chosen."""
        if not self._functions:
            return {}
        functions, chosen = self._functions, choice
        if isinstance(choice, wire.AllowedToolsChoice):
            # No engine has this; one that does not know of the others cannot call them.
            functions, chosen = self._allowed(choice), choice.mode
        chat: Json = {"tools": [function for _, function in functions]}
        if isinstance(chosen, wire.FunctionToolChoice | wire.CustomToolChoice):
            chat["tool_choice"] = {"type": "function", "function": {"name": chosen.name}}
        elif chosen is not None:
            chat["tool_choice"] = chosen
        return chat

    def called(self, function: str) -> ClientTool:
        """What a function stands for. What a model has made up is a function of that name."""
        return self._tools.get(function) or Tool(name=function)

    def _allowed(self, choice: wire.AllowedToolsChoice) -> list[tuple[str, Json]]:
        names = {tool.name for tool in choice.tools}
        if not names or not names <= self._tools.keys():
            raise BadRequest(
                "tool_choice allows tools that are not in tools, or none.", param="tool_choice.tools"
            )
        return [(name, function) for name, function in self._functions if name in names]


def function_name(name: str, namespace: str | None) -> str:
    """What a tool is called in a chat."""
    if namespace is None:
        return name
    return namespace + ("" if namespace.endswith(BETWEEN) else BETWEEN) + name


def input_text_of(arguments: str) -> str:
    """What a tool that takes a text is given. A call that was cut short has what there is."""
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    text = given.get(INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


def arguments_with_text(text: str) -> str:
    """The same as a function's arguments."""
    return msgspec.json.encode({INPUT: text}).decode()


def _each(
    given: Sequence[wire.ResponsesTool],
) -> Iterator[tuple[str, str | None, str | None, wire.FunctionTool | wire.CustomTool]]:
    """(where it stands, what is said above it, its namespace, the tool)"""
    for at, tool in enumerate(given):
        if not isinstance(tool, wire.NamespaceTool):
            yield f"tools[{at}]", None, None, tool
            continue
        for number, inner in enumerate(tool.tools):
            # Once, for what belongs together stands together.
            yield f"tools[{at}].tools[{number}]", None if number else tool.description, tool.name, inner


def _function(name: str, about: str | None, tool: wire.FunctionTool | wire.CustomTool) -> Json:
    lines = [about, tool.description]
    function: Json = {"name": name}
    if isinstance(tool, wire.CustomTool):
        function["parameters"] = TEXT_ALONE
        form = tool.format
        if form is not None and form.definition is not None:
            lines.append(f"Its input follows this {form.syntax or 'lark'} grammar:\n{form.definition}")
    else:
        function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
        if tool.strict is not None:
            function["strict"] = tool.strict
    if said := "\n".join(line for line in lines if line is not None):
        function["description"] = said
    return {"type": "function", "function": function}
