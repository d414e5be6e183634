"""Bodies of the Messages API as chat requests: translated fields, and refused ones by name."""

import json

import pytest

from gateway.domain.errors import BadRequest
from gateway.web.anthropic.request_translation import decode_count_request, decode_message_request
from gateway.web.openai.inference_requests import GATEWAY_OWNED

HELLO = [{"role": "user", "content": "hi"}]
PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}
TOOL = {"name": "get_weather", "description": "outside", "input_schema": {"type": "object"}}


def fields(**body):
    """The chat request's fields, decoded."""
    whole = {"model": "m", "max_tokens": 9, "messages": HELLO, **body}
    request = decode_message_request(json.dumps(whole).encode()).chat
    return {name: json.loads(bytes(raw)) for name, raw in request.fields.items()}


def messages(*turns, **body):
    return fields(messages=[{"role": role, "content": content} for role, content in turns], **body)[
        "messages"
    ]


def refused(**body):
    with pytest.raises(BadRequest) as refusal:
        fields(**body)
    return refusal.value.param


def test_a_small_message_is_a_small_chat():
    assert fields() == {"model": "m", "max_tokens": 9, "messages": HELLO}


def test_the_system_prompt_comes_first_as_one_text():
    assert messages(("user", "hi"), system="Be brief.")[0] == {"role": "system", "content": "Be brief."}
    blocks = [{"type": "text", "text": t, "cache_control": {"type": "ephemeral"}} for t in ("One.", "Two.")]
    assert messages(("user", "hi"), system=blocks)[0] == {"role": "system", "content": "One.\nTwo."}


def test_a_billing_header_that_differs_in_each_request_is_left_out():
    blocks = [
        {"type": "text", "text": "x-anthropic-billing-header: 1f"},
        {"type": "text", "text": "Be brief."},
    ]
    assert messages(("user", "hi"), system=blocks)[0]["content"] == "Be brief."


SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "radix"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "s1",
    "content": [
        {"type": "web_search_result", "title": "A", "url": "https://e.org", "encrypted_content": "Zm9v"}
    ],
}


def test_a_search_that_anthropics_servers_made_is_a_tool_call_with_its_result():
    said = {"type": "text", "text": "It is a tree.", "citations": None}
    asked, call, result, answer, more = messages(
        ("user", "radix?"), ("assistant", [SEARCH, FOUND, said]), ("user", "more")
    )
    assert call["tool_calls"][0]["function"] == {"name": "web_search", "arguments": '{"query": "radix"}'}
    assert (result["role"], result["tool_call_id"]) == ("tool", "s1")
    assert json.loads(result["content"]) == [
        {"type": "web_search_result", "title": "A", "url": "https://e.org"}
    ]
    assert answer == {"role": "assistant", "content": "It is a tree."}
    assert (asked["role"], more["role"]) == ("user", "user")


def test_a_turn_that_paused_after_a_search_goes_on_as_a_new_answer():
    sent = fields(messages=[*HELLO, {"role": "assistant", "content": [SEARCH, FOUND]}])
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool"]
    assert "continue_final_message" not in sent


@pytest.mark.parametrize("block", [SEARCH, FOUND], ids=["a call", "a result"])
def test_a_call_without_its_result_and_a_result_without_its_call_are_left_out(block):
    turns = messages(("user", "hi"), ("assistant", [block, {"type": "text", "text": "yes"}]), ("user", "so"))
    assert turns[1] == {"role": "assistant", "content": "yes"}


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("web_fetch", {"type": "web_fetch_result", "url": "https://e.org", "content": {"source": PNG}}),
        ("code_execution", {"type": "code_execution_result", "stdout": "2", "return_code": 0}),
        ("bash_code_execution", {"type": "bash_code_execution_result", "stdout": "2"}),
        ("text_editor_code_execution", {"type": "text_editor_code_execution_view_result", "content": "x"}),
        ("tool_search", {"type": "tool_search_tool_search_result", "tool_references": []}),
        ("web_search", {"type": "web_search_tool_result_error", "error_code": "unavailable"}),
    ],
)
def test_every_result_of_a_server_tool_is_readable_json(kind, content):
    use = {**SEARCH, "name": kind}
    result = {"type": f"{kind}_tool_result", "tool_use_id": "s1", "content": content}
    turns = messages(("user", "hi"), ("assistant", [use, result]), ("user", "so"))
    assert json.loads(turns[2]["content"])["type"] == content["type"]
    assert "aGk=" not in turns[2]["content"]


def test_images_are_data_urls_or_the_urls_that_they_were():
    parts = [
        {"type": "image", "source": PNG},
        {"type": "image", "source": {"type": "url", "url": "https://e.org/a.png"}},
        {"type": "text", "text": "what?"},
    ]
    assert messages(("user", parts))[0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "image_url", "image_url": {"url": "https://e.org/a.png"}},
        {"type": "text", "text": "what?"},
    ]


def test_a_document_has_its_title_its_context_and_its_blocks():
    about = {"type": "document", "title": "Title", "context": "Context"}
    plain = {**about, "source": {"type": "text", "media_type": "text/plain", "data": "Data"}}
    blocks = [{"type": "text", "text": "Data"}, {"type": "image", "source": PNG}]
    made = {**about, "source": {"type": "content", "content": blocks}}
    file = {**about, "source": {**PNG, "media_type": "application/pdf"}}
    assert messages(("user", [plain]))[0]["content"] == "Title\nContext\nData"
    parts = messages(("user", [made]))[0]["content"]
    assert [part.get("text") for part in parts] == ["Title", "Context", "Data", None]
    parts = messages(("user", [file]))[0]["content"]
    assert (parts[0]["text"], parts[1]["file"]["filename"]) == ("Context", "Title")


@pytest.mark.parametrize("kind", ["adaptive", "between_tools"])
def test_thinking_is_left_to_the_model_where_no_template_controls_it(kind):
    assert "chat_template_kwargs" not in fields(thinking={"type": kind})


def test_tools_calls_and_results_go_round():
    use = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"days": 1, "unit": "C"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]}
    got = fields(
        messages=[
            {"role": "user", "content": "Oslo?"},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]},
            {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
        ],
        tools=[TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    assert got["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "outside",
                "parameters": {"type": "object"},
            },
        }
    ]
    assert (got["tool_choice"], got["parallel_tool_calls"]) == ("required", False)
    _, said, told, asked = got["messages"]
    assert said["content"] == "I look."
    assert said["tool_calls"][0] == {
        "id": "t1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"days": 1, "unit": "C"}'},
    }
    assert told == {"role": "tool", "tool_call_id": "t1", "content": "rain"}
    assert asked == {"role": "user", "content": "And?"}


def test_an_image_that_a_tool_returns_is_shown_beside_its_result():
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "image", "source": PNG}]}
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    told, shown = messages(("user", "look"), ("assistant", [use]), ("user", [result]))[2:]
    assert (told["role"], told["content"]) == ("tool", "")
    assert (shown["role"], shown["content"][0]["type"]) == ("user", "image_url")


@pytest.mark.parametrize(
    ("choice", "chat"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "get_weather"}, {"type": "function", "function": {"name": "get_weather"}}),
    ],
)
def test_every_choice_of_tools_has_its_counterpart(choice, chat):
    assert fields(tools=[TOOL], tool_choice=choice)["tool_choice"] == chat


def test_thinking_is_turned_on_and_off_by_the_templates_variables_and_returned():
    assert fields(thinking={"type": "enabled", "budget_tokens": 1024})["chat_template_kwargs"] == {
        "enable_thinking": True,
        "thinking": True,
    }
    assert fields(thinking={"type": "disabled"})["chat_template_kwargs"]["enable_thinking"] is False
    assert "chat_template_kwargs" not in fields(thinking={"type": "adaptive"})
    thought = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "so"},
    ]
    assert messages(("user", "a"), ("assistant", thought), ("user", "b"))[1] == {
        "role": "assistant",
        "content": "so",
        "reasoning_content": "hm",
    }


def test_turns_of_one_role_become_one_and_a_reminder_in_the_middle_is_the_users():
    got = messages(
        ("user", "a"),
        ("user", "b"),
        ("assistant", "c"),
        ("user", "d"),
        ("system", "It is late."),
        ("user", "e"),
    )
    assert [message["role"] for message in got] == ["user", "assistant", "user"]
    assert [part["text"] for part in got[0]["content"]] == ["a", "b"]
    assert [part["text"] for part in got[2]["content"]] == ["d", "It is late.", "e"]


def test_an_answer_that_is_begun_is_gone_on_with():
    got = fields(messages=[*HELLO, {"role": "assistant", "content": "Well, "}])
    assert (got["continue_final_message"], got["add_generation_prompt"]) == (True, False)


def test_what_bounds_and_shapes_the_answer_has_chats_names():
    got = fields(
        stop_sequences=["END"],
        top_k=5,
        temperature=0.5,
        top_p=0.9,
        stream=True,
        metadata={"user_id": "u"},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    )
    assert (got["stop"], got["top_k"], got["temperature"], got["top_p"], got["user"]) == (
        ["END"],
        5,
        0.5,
        0.9,
        "u",
    )
    assert (got["stream"], got["stream_options"]) == (True, {"include_usage": True})
    assert got["reasoning_effort"] == "low"
    assert got["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_engine_fields_pass_and_those_of_the_gateway_and_of_anthropics_service_do_not():
    got = fields(
        min_p=0.1,
        **dict.fromkeys(GATEWAY_OWNED, "mine"),
        context_management={"edits": []},
        service_tier="auto",
        n=5,
        stop=["a way round"],
    )
    assert set(got) == {"model", "max_tokens", "messages", "min_p"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "wish"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"tools": [{"type": "telepathy_20250305", "name": "telepathy"}]}, "tools[0]"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"model": ""}, "model"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]},
            "messages[0]",
        ),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_its_field(body, param):
    assert refused(**body) == param


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"model":"\xff","messages":[]}']
)
def test_what_is_no_body_is_refused(body):
    with pytest.raises(BadRequest):
        decode_message_request(body)


def test_a_prompt_is_counted_without_a_bound_on_its_answer():
    request = decode_count_request(json.dumps({"model": "m", "messages": HELLO, "system": "s"}).encode())
    assert [message["role"] for message in request.prompt] == ["system", "user"]
