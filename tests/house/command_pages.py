"""The reference of all commands, as Markdown, generated from the commands themselves."""

import re
from collections.abc import Iterator
from typing import Any

from gateway.cli.command_registry import CommandGroup


def commands_reference() -> str:
    """Every command with its help text, arguments and options."""
    group = CommandGroup(name="radixgate")
    context = group.make_context("radixgate", [], resilient_parsing=True)
    return "\n\n".join(
        part
        for name in group.list_commands(context)
        for part in _command(name, group.get_command(context, name))
    )


def _command(name: str, command: Any) -> Iterator[str]:
    yield f"## `radixgate {name}`" if " " not in name else f"### `radixgate {name}`"
    if text := _plain(command.help):
        yield text
    rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if rows := [row for row in rows if row is not None]:
        yield "\n".join(["| argument or option | default | meaning |", "|---|---|---|", *rows])
    for inner_name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _command(f"{name} {inner_name}", inner)


def _row(parameter: Any) -> str | None:
    if parameter.name == "help":
        return None
    if parameter.param_type_name == "argument":
        words = parameter.metavar or parameter.name.upper()
    else:
        words = ", ".join([*parameter.opts, *parameter.secondary_opts])
        words += f" {parameter.metavar}" if parameter.metavar else ""
    return f"| `{_cell(words)}` | {_default(parameter)} | {_cell(_plain(parameter.help))} |"


def _default(parameter: Any) -> str:
    shown = getattr(parameter, "show_default", False)
    if isinstance(shown, str):
        return shown
    if shown is False or parameter.default in (None, False, "") or callable(parameter.default):
        return ""
    return f"`{getattr(parameter.default, 'value', parameter.default)}`"


def _plain(text: str | None) -> str:
    """Return a help text as Markdown: one line for each paragraph."""
    paragraphs = re.split(r"\n\s*\n", (text or "").replace("\b", "").strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _cell(text: str) -> str:
    """Return text for one cell of a table."""
    return text.replace("\n\n", " ").replace("|", "\\|")
