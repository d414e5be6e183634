r"""The tool plan of a request: which tools may be called, whether one must be, and how the answer is parsed.

tool_choice    none       text only; the prompt still lists the tools, as in vLLM
               auto       text, calls or both; the model decides
               required   calls only     \  a grammar ensures that names exist
               a name     that one only  /  and arguments fit their schema
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from workers.engine.grammar.grammar import Grammar, GrammarKind
from workers.engine.tokenization.token_bytes import TokenBytes
from workers.engine_server.errors import bad_request
from workers.engine_server.tools.call_parser import CallParser
from workers.engine_server.tools.formats import CallFormat

TOOLS_MAX = 128
"""Most tools of one request."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class FunctionDefinition(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: str
    parameters: dict[str, Any] | None = None
    """The JSON schema of the arguments."""


class ToolDefinition(msgspec.Struct, frozen=True):
    """One entry of a request's `tools`."""

    function: FunctionDefinition
    type: str = "function"


class _FunctionName(msgspec.Struct, frozen=True):
    name: str


class NamedToolChoice(msgspec.Struct, frozen=True):
    """A `tool_choice` that names a function."""

    function: _FunctionName
    type: str = "function"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """How tool calls are constrained and read in the answers of one request."""

    call_format: CallFormat | None = None
    """How the model writes calls; None where the answers are only text."""
    names: frozenset[str] = frozenset()
    """The functions that may be called."""
    several: bool = True
    """Whether an answer may have more than one call."""
    grammar: Grammar | None = None
    """Forces the answer to be calls; None where the model decides."""
    shown_ids: frozenset[int] = frozenset()
    """Special tokens that the parser needs in the text."""

    def parser(self) -> CallParser | None:
        """Return a new parser for one answer, or None where the answers are only text."""
        if self.call_format is None:
            return None
        return CallParser(self.call_format, self.names, only_first=not self.several)


TEXT_ONLY = ToolPlan()


def tool_plan(
    tools: list[dict[str, Any]] | None,
    choice: str | dict[str, Any] | None,
    parallel: bool | None,
    *,
    call_format: CallFormat | None,
    token_bytes: TokenBytes,
) -> ToolPlan:
    """Return the plan of a request.

    Args:
        tools: The request's `tools`.
        choice: The request's `tool_choice`.
        parallel: The request's `parallel_tool_calls`.
        call_format: How the model writes tool calls; None if that is not known.
        token_bytes: The texts of the model's tokens.

    Raises:
        ApiError: A field is invalid; the error names it.
    """
    functions = _functions(tools or [])
    wanted, only = _wanted(choice, functions)
    if not functions or wanted == "none":
        return TEXT_ONLY
    if call_format is None:
        raise bad_request(
            "How this model writes tool calls is not known; start the worker with --tool-call-parser.",
            param="tools",
            code="unsupported_parameter",
        )
    several = parallel is not False
    # Special tokens are not part of the text: the parser has to be shown them, and a grammar writes them by number.
    special = {marker: token for marker in call_format.begin for token in token_bytes.special_ids([marker])}
    grammar = None
    if wanted != "auto":
        callable_now = {name: schema for name, schema in functions.items() if only in (None, name)}
        text = call_format.grammar(callable_now, special, several=several and only is None)
        grammar = Grammar(kind=GrammarKind.LARK, text=text)
    return ToolPlan(
        call_format=call_format,
        names=frozenset(functions),
        several=several,
        grammar=grammar,
        shown_ids=frozenset(special.values()),
    )


def _functions(tools: list[dict[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the schema of the parameters by function name."""
    if len(tools) > TOOLS_MAX:
        raise bad_request(f"A request has at most {TOOLS_MAX} tools.", param="tools")
    found: dict[str, Mapping[str, Any]] = {}
    for place, entry in enumerate(tools):
        where = f"tools[{place}]"
        try:
            tool = msgspec.convert(entry, ToolDefinition)
        except msgspec.ValidationError as err:
            raise bad_request(f"{where} is invalid: {err}.", param=where) from err
        if tool.type != "function":
            raise bad_request(f"{where}: only functions are supported, not {tool.type!r}.", param=where)
        name = tool.function.name
        if not _NAME.fullmatch(name):
            raise bad_request(
                f"{where}.function.name has 1 to 64 letters, digits, dots, dashes and underscores.",
                param=f"{where}.function.name",
            )
        # The arguments of a call are always an object, even where the schema does not require it.
        found[name] = {"type": "object", **(tool.function.parameters or _NO_PARAMETERS)}
    return found


def _wanted(choice: str | dict[str, Any] | None, functions: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return "none", "auto" or "required", and the name of the function that must be called, if one is named."""
    if choice is None or choice == "auto":
        return "auto", None
    if choice == "none":
        return "none", None
    if not functions:
        raise bad_request("tool_choice needs tools to choose from.", param="tool_choice")
    if choice == "required":
        return "required", None
    try:
        named = msgspec.convert(choice, NamedToolChoice)
    except msgspec.ValidationError as err:
        raise bad_request(
            'tool_choice is "none", "auto", "required", or names a function.', param="tool_choice"
        ) from err
    if named.type != "function" or named.function.name not in functions:
        raise bad_request("tool_choice names a function that is not in tools.", param="tool_choice")
    return "required", named.function.name
