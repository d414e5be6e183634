"""Items of the Responses API to chat messages and back; a stream's events wherever it was cut."""

import json
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import BadRequest, StreamInterrupted
from gateway.web.openai import chat_completions
from gateway.web.responses import answers, items, messages
from gateway.web.responses.dialect import ResponsesDialect
from gateway.web.responses.events import ResponseEvents
from gateway.web.responses.request_translation import decode_responses_body, to_chat_request
from gateway.web.responses.tools import ChatTools

USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}
CALLS = [
    {"index": 0, "id": "c0", "function": {"name": "f", "arguments": '{"a":1}'}},
    {"index": 1, "id": "c1", "function": {"name": "g", "arguments": "{}"}},
]


def chunk(delta=None, finish=None, usage=None):
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"model": "m", "choices": choices, "usage": usage}).encode() + b"\n\n"


STREAM = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning": "hm"}),
    chunk({"content": "Let me "}),
    chunk({"content": "look."}),
    *(chunk({"tool_calls": [call]}) for call in CALLS),
    chunk({}, "tool_calls"),
    chunk(usage=USAGE),
    b"data: [DONE]\n\n",
]


def translated(*pieces, tools=None, **more):
    stream = ResponseEvents({"id": "resp_1"}, tools or ChatTools(None), **more)
    text = stream.begin() + b"".join(map(stream.feed, pieces))
    closing, output = stream.close()
    text += closing + stream.last(
        answers.finished_response(stream.response, output, stream.finish_reason, stream.usage, 0)
    )
    found = [part.split("\n") for part in text.decode().split("\n\n")[:-1]]
    return [json.loads(data.removeprefix("data: ")) for _, data in found]


def without_ids(value):
    """The same without what is drawn anew."""
    if isinstance(value, dict):
        return {k: without_ids(v) for k, v in value.items() if k not in ("id", "item_id")}
    return [without_ids(v) for v in value] if isinstance(value, list) else value


def test_a_stream_and_a_whole_answer_have_the_same_output():
    said = {"reasoning": "hm", "content": "Let me look.", "tool_calls": CALLS}
    body = {"choices": [{"message": said, "finish_reason": "tool_calls"}], "usage": USAGE}
    output, _ = answers.output_items(
        chat_completions.decode_chat_completion(json.dumps(body).encode()), "resp_1", ChatTools(None)
    )
    last = translated(*STREAM)[-1]
    assert last["type"] == "response.completed"
    assert without_ids(last["response"]["output"]) == without_ids(output)
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert last["response"]["usage"]["input_tokens_details"]["cached_tokens"] == 6


def test_an_answer_that_ends_in_its_reasoning_has_no_other_content():
    body = {"choices": [{"message": {"reasoning": "hm", "content": None}, "finish_reason": "length"}]}
    output, _ = answers.output_items(
        chat_completions.decode_chat_completion(json.dumps(body).encode()), "resp_1", ChatTools(None)
    )
    streamed = translated(STREAM[1], chunk({}, "length"))[-1]["response"]
    assert [item["type"] for item in output] == ["reasoning"]
    assert without_ids(streamed["output"]) == without_ids(output)


def whole(said, finish="stop", **more):
    body = {"choices": [{"message": said, "finish_reason": finish}]}
    chat = chat_completions.decode_chat_completion(json.dumps(body).encode())
    return answers.output_items(chat, "resp_1", ChatTools(None), **more)[0]


def test_a_refusal_is_a_part_of_its_own_kind():
    output = whole({"content": None, "refusal": "I will not."})
    assert [item["content"] for item in output] == [[{"type": "refusal", "refusal": "I will not."}]]
    events = translated(chunk({"refusal": "I will "}), chunk({"refusal": "not."}), chunk({}, "stop"))
    assert without_ids(events[-1]["response"]["output"]) == without_ids(output)
    said = [(event["type"], event.get("delta") or event.get("refusal")) for event in events[4:7]]
    assert said == [
        ("response.refusal.delta", "I will "),
        ("response.refusal.delta", "not."),
        ("response.refusal.done", "I will not."),
    ]


@pytest.mark.parametrize(
    ("finish", "status"), [("stop", "completed"), ("length", "incomplete"), ("content_filter", "incomplete")]
)
def test_the_last_item_of_an_incomplete_response_is_incomplete(finish, status):
    assert [item["status"] for item in whole({"content": "a"}, finish)] == [status]
    events = translated(chunk({"content": "a"}), chunk({}, finish))
    assert [item["status"] for item in events[-1]["response"]["output"]] == [status]
    (done,) = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done["status"] == status


def test_reasoning_goes_back_encoded_where_a_client_keeps_the_conversation():
    body = {"model": "m", "input": "a", "store": False, "include": ["reasoning.encrypted_content"]}
    read, fields = decode_responses_body(json.dumps(body).encode())
    asked = to_chat_request(read, fields, [], items.input_items("a", "resp_1"))
    assert asked.encodes_reasoning
    reasoning, _ = whole({"reasoning": "hm", "content": "b"}, encodes_reasoning=True)
    streamed, _ = translated(*STREAM[1:4], chunk({}, "stop"), encodes_reasoning=True)[-1]["response"][
        "output"
    ]
    assert streamed["encrypted_content"] == reasoning["encrypted_content"]
    back = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}
    assert messages.chat_messages([back], None) == [
        {"content": "", "role": "assistant", "reasoning_content": "hm"}
    ]
    assert "encrypted_content" not in whole({"reasoning": "hm", "content": "b"})[0]


def test_reasoning_that_another_server_has_encrypted_is_left_out():
    for content in ("gAAAAABn_x8=", "/////w=="):
        back = {"type": "reasoning", "summary": [], "encrypted_content": content}
        assert messages.chat_messages([back], None) == []


def test_each_item_has_its_events_added_delta_and_done_at_its_place():
    events = translated(*STREAM)
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    added = [e["output_index"] for e in events if e["type"] == "response.output_item.added"]
    done = [(e["output_index"], e["item"]) for e in events if e["type"] == "response.output_item.done"]
    assert added == [at for at, _ in done] == [0, 1, 2, 3]
    assert [item for _, item in done] == events[-1]["response"]["output"]
    ids = {item["id"] for _, item in done}
    assert all(e["item_id"] in ids for e in events if "item_id" in e)


def test_a_part_has_added_before_its_deltas_and_done_after_them():
    kinds = [event["type"].removeprefix("response.") for event in translated(*STREAM)]
    for kind in ("reasoning_text", "output_text"):
        begun, said = kinds.index("content_part.added"), kinds.index(f"{kind}.delta")
        ended, done = kinds.index(f"{kind}.done"), kinds.index("content_part.done")
        assert begun + 1 == said
        assert ended + 1 == done
        kinds = kinds[done + 1 :]


@given(cuts=st.lists(st.integers(0, sum(map(len, STREAM))), max_size=12))
def test_where_a_stream_is_cut_makes_no_difference(cuts):
    whole = b"".join(STREAM)
    pieces = [whole[a:b] for a, b in pairwise([0, *sorted(cuts), len(whole)])]
    assert without_ids(translated(*pieces)) == without_ids(translated(*STREAM))


def test_a_stream_without_an_end_is_interrupted():
    with pytest.raises(StreamInterrupted):
        translated(*STREAM[:4])


@pytest.mark.parametrize(
    "call",
    [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
        {"type": "file_search_call", "queries": ["q"], "results": None},
        {"type": "code_interpreter_call", "code": "1+1", "container_id": "c", "outputs": None},
        {"type": "image_generation_call", "result": "aGk="},
        {"type": "mcp_list_tools", "server_label": "files", "tools": []},
        {"type": "mcp_approval_request", "server_label": "files", "name": "read", "arguments": "{}"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"type": "mcp_call", "server_label": "files", "name": "read", "arguments": "{}", "output": "text"},
    ],
    ids=lambda call: call["type"],
)
def test_calls_that_another_server_made_are_kept_and_not_sent_to_the_worker(call):
    history = [
        {"role": "user", "content": "What is new?"},
        call,
        {"role": "assistant", "content": [{"type": "output_text", "text": "Much.", "annotations": []}]},
    ]
    read = items.input_items([msgspec.Raw(msgspec.json.encode(item)) for item in history], "resp_1")
    assert messages.chat_messages(read, None) == [
        {"role": "user", "content": "What is new?"},
        {"role": "assistant", "content": "Much."},
    ]
    shown = items.item_object(read[1])
    assert (shown["type"], shown["status"]) == (call["type"], "completed")
    assert shown["id"].startswith(("ws_", "fs_", "ci_", "ig_", "mcp"))


@pytest.mark.parametrize("named_by", ["call_id", "id"])
def test_a_call_of_the_local_shell_becomes_a_tool_call_and_its_result(named_by):
    action = {"type": "exec", "command": ["ls"], "env": {}}
    history = [
        {"role": "user", "content": "What is here?"},
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "action": action, "status": "completed"},
        {"type": "local_shell_call_output", named_by: "c1", "output": '{"output": "a.txt"}'},
    ]
    read = items.input_items([msgspec.Raw(msgspec.json.encode(item)) for item in history], "resp_1")
    _, call, result = messages.chat_messages(read, None)
    (asked,) = call["tool_calls"]
    assert (asked["id"], asked["function"]["name"]) == ("c1", "local_shell")
    assert msgspec.json.decode(asked["function"]["arguments"]) == action
    assert result == {"role": "tool", "tool_call_id": "c1", "content": '{"output": "a.txt"}'}


def test_an_output_goes_back_as_one_turn():
    output = translated(*STREAM)[-1]["response"]["output"]
    told = {"type": "function_call_output", "call_id": "c0", "output": "rain"}
    chat = messages.chat_messages([*items.input_items("Oslo?", "resp_1"), *output, told], "Be brief.")
    assert [message["role"] for message in chat] == ["system", "user", "assistant", "tool"]
    turn = chat[2]
    assert (turn["reasoning_content"], turn["content"]) == ("hm", "Let me look.")
    assert [call["id"] for call in turn["tool_calls"]] == ["c0", "c1"]
    assert chat[3] == {"role": "tool", "tool_call_id": "c0", "content": "rain"}


def test_leading_developers_join_the_instructions_and_later_ones_stay_where_they_are():
    given_items = [
        {"type": "message", "role": "developer", "content": "One."},
        {"type": "message", "role": "user", "content": "a"},
        {"type": "message", "role": "system", "content": "Two."},
    ]
    chat = messages.chat_messages(given_items, "Zero.")
    assert [(m["role"], m["content"]) for m in chat] == [
        ("system", "Zero.\nOne."),
        ("user", "a"),
        ("system", "Two."),
    ]


def test_what_a_function_shows_comes_after_all_results_of_its_turn():
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    results = [
        {
            "type": "function_call_output",
            "call_id": "a",
            "output": [{"type": "input_text", "text": "A"}, image],
        },
        {"type": "function_call_output", "call_id": "b", "output": "B"},
    ]
    shown = {"type": "image_url", "image_url": {"url": image["image_url"]}}
    given = [{**call, "call_id": "a"}, {**call, "call_id": "b"}, *results]
    turns = messages.chat_messages(given, None)[1:]
    assert [turn["role"] for turn in turns] == ["tool", "tool", "user"]
    assert ([turn["content"] for turn in turns[:2]], turns[2]["content"]) == (["A", "B"], [shown])
    turns = messages.chat_messages([*given, {"type": "message", "role": "user", "content": "what?"}], None)[
        1:
    ]
    assert turns[2:] == [{"role": "user", "content": [shown, {"type": "text", "text": "what?"}]}]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_message_that_is_more_than_text_is_refused(role):
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    with pytest.raises(BadRequest) as raised:
        messages.chat_messages([{"type": "message", "role": role, "content": [image]}], None)
    assert raised.value.param == "input[0]"


TOOLS = [{"type": "function", "name": name} for name in "fgh"]


def chat_of(**body):
    read, fields = decode_responses_body(json.dumps({"model": "m", "input": "x", **body}).encode())
    chat = to_chat_request(read, fields, [], items.input_items(read.input, "resp_1")).chat
    return {name: json.loads(bytes(raw)) for name, raw in chat.fields.items()}, read


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_worker_gets_the_allowed_tools_and_no_others(mode):
    allowed = [{"type": "function", "name": "h"}, {"type": "function", "name": "f"}]
    choice = {"type": "allowed_tools", "mode": mode, "tools": allowed}
    chat, read = chat_of(tools=TOOLS, tool_choice=choice)
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["f", "h"]
    assert chat["tool_choice"] == mode
    assert answers.new_response("resp_1", 0.0, read, [], stored=True)["tool_choice"] == choice


@pytest.mark.parametrize("names", ["", "fx"], ids=["none", "one that is not there"])
def test_what_allows_no_tool_that_there_is_is_refused(names):
    allowed = [{"type": "function", "name": name} for name in names]
    with pytest.raises(BadRequest) as refused:
        chat_of(tools=TOOLS, tool_choice={"type": "allowed_tools", "mode": "auto", "tools": allowed})
    assert refused.value.param == "tool_choice.tools"


def test_a_function_that_is_chosen_is_returned():
    chat, read = chat_of(tools=TOOLS, tool_choice={"type": "function", "name": "g"})
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "g"}}
    assert answers.new_response("resp_1", 0.0, read, [], stored=True)["tool_choice"] == {
        "type": "function",
        "name": "g",
    }


@pytest.mark.parametrize(
    ("param", "message", "called", "told"),
    [
        *(
            ("max_completion_tokens", "max_completion_tokens must be 1.", "max_output_tokens", None),
            ("messages", "The messages are none.", "input", "The messages are none."),
            ("response_format", "response_format: no.", "text.format", "text.format: no."),
        ),
        ("model", "model must be one.", "model", "model must be one."),
        (None, "max_completion_tokens is no.", None, "max_completion_tokens is no."),
    ],
    ids=["a limit", "in a sentence", "with a colon", "the same here", "of no field"],
)
def test_errors_name_fields_as_this_api_does(param, message, called, told):
    error = json.loads(ResponsesDialect("req-1", None).error_body(BadRequest(message, param=param)))["error"]
    assert (error["param"], error["message"]) == (called, told or "max_output_tokens must be 1.")
