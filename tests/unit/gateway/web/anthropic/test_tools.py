"""Anthropic's own tools: as functions where the client runs them, left out where Anthropic's servers do."""

import json

import pytest

from gateway.domain.errors import BadRequest
from gateway.web.anthropic.request_translation import decode_message_request

OWN = {"name": "f", "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}


def asked(**body):
    whole = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}], **body}
    return decode_message_request(json.dumps(whole).encode())


def functions(**body):
    tools = json.loads(bytes(asked(**body).chat.fields["tools"]))
    return {tool["function"]["name"]: tool["function"] for tool in tools}


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({"type": "bash_20250124", "name": "bash"}, "command"),
        ({"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}, "old_str"),
        ({"type": "memory_20250818", "name": "memory"}, "path"),
        (
            {
                "type": "computer_20250124",
                "name": "computer",
                "display_width_px": 800,
                "display_height_px": 600,
            },
            "coordinate",
        ),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else value,
)
def test_a_tool_that_the_client_runs_is_a_function(tool, field):
    function = functions(tools=[tool])[tool["name"]]
    assert field in function["parameters"]["properties"]
    assert function["description"]
    assert ("800 x 600" in function["description"]) == ("display_width_px" in tool)


def test_tools_of_anthropics_servers_are_left_out_and_named():
    toolset = {"type": "mcp_toolset", "mcp_server_name": "files"}
    read = asked(tools=[SEARCH, OWN, toolset], tool_choice={"type": "any"})
    assert functions(tools=[SEARCH, OWN, toolset]).keys() == {"f"}
    assert read.omitted_tools == ["web_search_20250305", "mcp_toolset"]
    assert json.loads(bytes(read.chat.fields["tool_choice"])) == "required"
    assert "tools" not in asked(tools=[SEARCH], tool_choice={"type": "auto"}).chat.fields


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [SEARCH, OWN], "tool_choice": {"type": "tool", "name": "web_search"}},
        {"tools": [SEARCH], "tool_choice": {"type": "any"}},
    ],
    ids=["by name", "any"],
)
def test_a_choice_that_demands_a_tool_of_anthropics_servers_is_refused(body):
    with pytest.raises(BadRequest, match="web_search_20250305") as refused:
        asked(**body)
    assert refused.value.param == "tool_choice"


def test_a_request_for_mcp_servers_gets_a_header_that_they_are_not_called():
    with pytest.raises(BadRequest, match="this gateway calls no MCP servers"):
        asked(mcp_servers=[{"type": "url", "url": "https://mcp.example.com", "name": "files"}])
