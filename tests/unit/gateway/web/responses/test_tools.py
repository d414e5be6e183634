"""Tools of the Responses API as functions of a chat, and what is called back as the item that it is."""

import json

import msgspec
import pytest

from gateway.domain.errors import BadRequest
from gateway.web.openai import chat_completions
from gateway.web.responses import answers, items, messages
from gateway.web.responses.request_translation import decode_responses_body, to_chat_request
from gateway.web.responses.tools import ChatTools
from tests.unit.gateway.web.responses.test_items import chunk, translated, without_ids

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}
GIVEN = [
    {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True},
    {"type": "custom", "name": "patch", "description": "Changes files.", "format": GRAMMAR},
    {
        "type": "namespace",
        "name": "mail",
        "description": "Of the mailbox.",
        "tools": [{"type": "function", "name": "send"}, {"type": "custom", "name": "find"}],
    },
    {"type": "namespace", "name": "mcp__files__", "tools": [{"type": "function", "name": "read"}]},
]
CALLED = [
    ("f", '{"a":1}', {"type": "function_call", "name": "f", "arguments": '{"a":1}'}),
    ("patch", '{"input": "a\\nb"}', {"type": "custom_tool_call", "name": "patch", "input": "a\nb"}),
    ("mail__send", "{}", {"type": "function_call", "name": "send", "namespace": "mail", "arguments": "{}"}),
    (
        "mail__find",
        '{"input": "x"}',
        {"type": "custom_tool_call", "name": "find", "namespace": "mail", "input": "x"},
    ),
    (
        "mcp__files__read",
        "{}",
        {"type": "function_call", "name": "read", "namespace": "mcp__files__", "arguments": "{}"},
    ),
    ("made_up", "{}", {"type": "function_call", "name": "made_up", "arguments": "{}"}),
]


def asked(**body):
    read, fields = decode_responses_body(
        json.dumps({"model": "m", "input": "x", "tools": GIVEN, **body}).encode()
    )
    return to_chat_request(read, fields, [], items.input_items(read.input, "resp_1"))


def chat_of(**body):
    return {name: json.loads(bytes(raw)) for name, raw in asked(**body).chat.fields.items()}


def tools():
    return asked().tools


def test_each_tool_is_a_function():
    functions = {tool["function"]["name"]: tool["function"] for tool in chat_of()["tools"]}
    assert list(functions) == ["f", "patch", "mail__send", "mail__find", "mcp__files__read"]
    assert functions["f"] == {"name": "f", "parameters": {"type": "object"}, "strict": True}
    assert functions["patch"]["parameters"]["required"] == ["input"]
    assert "Changes files." in functions["patch"]["description"]
    assert "start: /a+/" in functions["patch"]["description"]
    # What is said of a namespace is said once.
    assert functions["mail__send"]["description"] == "Of the mailbox."
    assert "description" not in functions["mail__find"]


@pytest.mark.parametrize(
    ("choice", "told", "offered"),
    [
        ({"type": "custom", "name": "patch"}, {"type": "function", "function": {"name": "patch"}}, 5),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]},
            "required",
            1,
        ),
    ],
    ids=["one", "allowed"],
)
def test_a_tool_that_takes_a_text_can_be_chosen(choice, told, offered):
    chat = chat_of(tool_choice=choice)
    assert (chat["tool_choice"], len(chat["tools"])) == (told, offered)
    read, _ = decode_responses_body(
        json.dumps({"model": "m", "tools": GIVEN, "tool_choice": choice}).encode()
    )
    assert answers.new_response("resp_1", 0.0, read, [], stored=True)["tool_choice"] == choice


def test_a_call_is_returned_with_the_type_of_its_tool():
    calls = [{"id": f"c{at}", "function": {"name": n, "arguments": a}} for at, (n, a, _) in enumerate(CALLED)]
    body = {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
    output, _ = answers.output_items(
        chat_completions.decode_chat_completion(json.dumps(body).encode()), "resp_1", tools()
    )
    assert [
        {name: value for name, value in item.items() if name not in ("id", "call_id", "status")}
        for item in output
    ] == [told for _, _, told in CALLED]
    pieces = [
        chunk({"tool_calls": [{"index": at, "id": f"c{at}", "function": {"name": name, "arguments": ""}}]})
        + b"".join(
            chunk({"tool_calls": [{"index": at, "function": {"arguments": letter}}]}) for letter in arguments
        )
        for at, (name, arguments, _) in enumerate(CALLED)
    ]
    events = translated(*pieces, chunk({}, "tool_calls"), tools=tools())
    assert without_ids(events[-1]["response"]["output"]) == without_ids(output)
    inputs = [e["input"] for e in events if e["type"] == "response.custom_tool_call_input.done"]
    deltas = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    assert inputs == deltas == ["a\nb", "x"]


@pytest.mark.parametrize("arguments", ['{"input": "a', "[1]", '{"text": "a"}', '{"input": 1}', ""])
def test_a_call_that_is_no_text_has_what_there_is(arguments):
    call = {"id": "c", "function": {"name": "patch", "arguments": arguments}}
    body = {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "length"}]}
    output, _ = answers.output_items(
        chat_completions.decode_chat_completion(json.dumps(body).encode()), "resp_1", tools()
    )
    assert output[0]["input"] == arguments


def test_calls_and_their_results_go_back_under_the_names_of_functions():
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    called = [{**told, "call_id": f"c{at}"} for at, (_, _, told) in enumerate(CALLED)]
    results = [
        {
            "type": item["type"].replace("_call", "_call_output"),
            "call_id": item["call_id"],
            "output": [image] if item["name"] == "find" else "ok",
        }
        for item in called
    ]
    own = items.input_items(
        [msgspec.Raw(json.dumps(item).encode()) for item in [*called, *results]], "resp_1"
    )
    turns = messages.chat_messages(own, None)
    functions = [call["function"] for call in turns[0]["tool_calls"]]
    assert [function["name"] for function in functions] == [name for name, _, _ in CALLED]
    assert [json.loads(function["arguments"]) for function in functions] == [
        json.loads(arguments) for _, arguments, _ in CALLED
    ]
    assert [turn["role"] for turn in turns[1:]] == ["tool"] * len(CALLED) + ["user"]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([GIVEN[0], {"type": "custom", "name": "f"}], "tools[1]"),
        ([GIVEN[2], {"type": "function", "name": "mail__find"}], "tools[1]"),
        ([{**GIVEN[2], "tools": [GIVEN[0], {**GIVEN[1], "name": "f"}]}], "tools[0].tools[1]"),
        ([{**GIVEN[2], "tools": [{"type": "web_search"}]}], "tools[0].tools[0].type"),
    ],
    ids=["two", "of a namespace", "in a namespace", "of others"],
)
def test_tools_that_one_function_would_stand_for_and_those_of_others_servers_are_refused(given, param):
    with pytest.raises(BadRequest) as refused:
        asked(tools=given)
    assert refused.value.param == param


def test_without_tools_nothing_is_chosen():
    assert ChatTools(None).chat_fields("required") == {}
    assert ChatTools([{"type": "function", "name": "f"}]).chat_fields(None).keys() == {"tools"}


HOSTED = [
    {"type": "web_search", "external_web_access": True},
    {"type": "image_generation", "output_format": "png"},
    {"type": "tool_search"},
    {"type": "local_shell"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "mcp", "server_label": "files", "server_url": "https://mcp.example.com"},
    {"type": "web_search_preview_2025_03_11"},
]


def test_hosted_tools_are_left_out_and_named():
    read = asked(tools=[HOSTED[0], GIVEN[0], *HOSTED[1:]], tool_choice="required")
    functions = json.loads(bytes(read.chat.fields["tools"]))
    assert [tool["function"]["name"] for tool in functions] == ["f"]
    assert read.tools.omitted == [tool["type"] for tool in HOSTED]
    response = answers.new_response("resp_1", 0.0, read.body, read.tools.offered, stored=True)
    assert [tool["type"] for tool in response["tools"]] == ["function"]


def test_a_request_with_nothing_but_hosted_tools_is_answered_without_tools():
    assert not {"tools", "tool_choice"} & chat_of(tools=HOSTED, tool_choice="auto").keys()


@pytest.mark.parametrize(
    "body",
    [
        {"tool_choice": {"type": "web_search_preview"}},
        {"tool_choice": {"type": "mcp", "server_label": "files"}},
        {"tool_choice": "required", "tools": HOSTED},
        {
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "image_generation"}],
            }
        },
    ],
    ids=["web search", "mcp", "any", "allowed"],
)
def test_a_choice_that_demands_a_hosted_tool_is_refused(body):
    with pytest.raises(BadRequest, match="which this gateway does not run") as refused:
        asked(**{"tools": [*GIVEN, *HOSTED], **body})
    assert refused.value.param == "tool_choice"


def test_a_hosted_tool_may_be_allowed_beside_functions():
    allowed = [{"type": "function", "name": "f"}, {"type": "image_generation"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": allowed}
    chat = chat_of(tools=[*GIVEN, *HOSTED], tool_choice=choice)
    assert ([tool["function"]["name"] for tool in chat["tools"]], chat["tool_choice"]) == (["f"], "required")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "telepathy"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "f", "parameters": []}]}, "tools[0].parameters"),
        ({"tools": [{"name": "f"}]}, "tools[0]"),
        ({"tool_choice": {"type": "telepathy"}}, "tool_choice.type"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
    ],
)
def test_a_malformed_tool_or_choice_is_refused_with_its_field(body, param):
    with pytest.raises(BadRequest) as refused:
        asked(**body)
    assert refused.value.param == param
