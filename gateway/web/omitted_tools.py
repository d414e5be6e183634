"""Tools that no engine and no client runs, such as the web search of OpenAI's and Anthropic's servers.

A model can answer without them. They are left out of the request, and named in a response header and in the log.
"""

import logging
from collections.abc import Sequence

from gateway.domain.errors import BadRequest

log = logging.getLogger(__name__)

HEADER = "x-radixgate-omitted-tools"
NAMED_MAX = 16
"""The most types that the header and the log name."""
TYPE_LENGTH_MAX = 64


def omitted_tools_header(types: Sequence[str]) -> dict[str, str]:
    """Return the header that names the types of the tools left out of a request; none if there are none."""
    return {HEADER: _names(types)} if types else {}


def log_omitted_tools(request_id: str, types: Sequence[str]) -> None:
    """Log the types of the tools left out of a request, if there are any."""
    if types:
        log.info("request %s: tools that are not run here were left out: %s", request_id, _names(types))


def tool_not_run(kind: str) -> BadRequest:
    """Return the error for a `tool_choice` that demands a tool of this type."""
    refused = (
        f"tool_choice demands a tool of type {kind[:TYPE_LENGTH_MAX]!r}, which this gateway does not run."
    )
    if kind.startswith("mcp"):
        advice = "It calls no MCP servers: call them in the client, and offer their tools as functions."
    else:
        advice = "Run the tool in the client, and offer it as a function."
    return BadRequest(f"{refused} {advice}", param="tool_choice")


def _names(types: Sequence[str]) -> str:
    """Return the types as printable ASCII, each once."""
    named = list(dict.fromkeys(types))[:NAMED_MAX]
    return ", ".join(ascii(kind[:TYPE_LENGTH_MAX])[1:-1] for kind in named)
