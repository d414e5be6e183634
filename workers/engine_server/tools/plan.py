"""What one request wants of tools: which may be called, whether one must be, and how the answer is read.

tool_choice    none       text only; the tools still stand in the prompt, as in vLLM
               auto       text, calls or both; the model decides
               required   calls only     \\  held by a grammar, so that names exist
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
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class FunctionDefinition(msgspec.Struct, frozen=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    parameters: dict[str, Any] | None = None


class ToolDefinition(msgspec.Struct, frozen=True):
    """One entry of `tools`."""

    function: FunctionDefinition
    type: str = "function"


class _Named(msgspec.Struct, frozen=True):
    name: str


class NamedToolChoice(msgspec.Struct, frozen=True):
    """A `tool_choice` that names a function."""

    function: _Named
    type: str = "function"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """How the answers of a request are held and read; `form` None where they are text and nothing else."""

    form: CallFormat | None = None
    names: frozenset[str] = frozenset()
    several: bool = True
    grammar: Grammar | None = None
    shown_ids: frozenset[int] = frozenset()

    def parser(self) -> CallParser | None:
        """A new one, for one answer."""
        if self.form is None:
            return None
        return CallParser(self.form, self.names, only_first=not self.several)


TEXT_ONLY = ToolPlan()


def tool_plan(
    tools: list[dict[str, Any]] | None,
    choice: str | dict[str, Any] | None,
    parallel: bool | None,
    *,
    form: CallFormat | None,
    pieces: TokenBytes,
) -> ToolPlan:
    """The plan of a request; ApiError names the field. `form`: the model's, None if it is not known."""
    functions = _functions(tools or [])
    wanted, only = _wanted(choice, functions)
    if not functions or wanted == "none":
        return TEXT_ONLY
    if form is None:
        raise bad_request(
            "How this model writes tool calls is not known; start the worker with --tool-call-parser.",
            param="tools",
            code="unsupported_parameter",
        )
    several = parallel is not False
    # Special tokens are no text: they are shown for the parser, and written by number in a grammar.
    special = {marker: token for marker in form.begin for token in pieces.special_ids([marker])}
    grammar = None
    if wanted != "auto":
        callable_now = {name: schema for name, schema in functions.items() if only in (None, name)}
        text = form.grammar(callable_now, special, several=several and only is None)
        grammar = Grammar(kind=GrammarKind.LARK, text=text)
    return ToolPlan(
        form=form,
        names=frozenset(functions),
        several=several,
        grammar=grammar,
        shown_ids=frozenset(special.values()),
    )


def _functions(tools: list[dict[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Names and schemas."""
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
        # The arguments of a call are an object, also where the schema does not say so.
        found[name] = {"type": "object", **(tool.function.parameters or _NO_PARAMETERS)}
    return found


def _wanted(choice: str | dict[str, Any] | None, functions: Mapping[str, Any]) -> tuple[str, str | None]:
    """One of "none", "auto" and "required", and the name of a function if it must be that one."""
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
