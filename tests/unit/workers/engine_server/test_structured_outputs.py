"""Structured output, tools, penalties and log probabilities over HTTP, of a model that speaks gibberish."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from workers.chat_template import ChatTemplate
from workers.engine.grammar import guidance
from workers.engine.grammar.grammar import Grammar, GrammarKind
from workers.engine.sampling.sampling_params import SamplingParams

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"temperature": 0}
Client = Any
Serve = Callable[..., Any]

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 30},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "What it is like outside", "parameters": SCHEMA},
}
CLOCK = {"type": "function", "function": {"name": "what.time-1"}}
TOOLS = [WEATHER, CLOCK]


async def answer(client: Client, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "Hello"}
    status, body = await client.post(
        path, {**prompt, "max_tokens": 300, "temperature": 3, "seed": 1, **fields}
    )
    assert status == 200, body
    return body["choices"][0]


# Structured output


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"regex": "[a-f]{4}-[0-9]+"}, "[a-f]{4}-[0-9]+"),
        ({"guided_regex": "x{2,5}"}, "x{2,5}"),
        ({"structured_outputs": {"regex": "x{2,5}"}}, "x{2,5}"),
        ({"guided_choice": ["yes", 'n"o', "mäßig 🦊"]}, 'yes|n"o|mäßig 🦊'),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "a|b"),
        ({"ebnf": 'root ::= "is " ("so" | "not so")'}, "is (so|not so)"),
        ({"guided_grammar": 'start: "is " WORD\nWORD: /[a-z]{2}/'}, "is [a-z]{2}"),
        ({"structured_outputs": {"grammar": 'start: "x"'}}, "x"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_an_answer_keeps_to_its_grammar(
    client: Client, path: str, fields: dict[str, Any], pattern: str
) -> None:
    for seed in range(3):
        choice = await answer(client, path, **fields, seed=seed)
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert choice["finish_reason"] == "stop" or len(text) > 20
        assert re.fullmatch(pattern, text) or choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}}},
        {"json_schema": json.dumps(SCHEMA)},
        {"guided_json": SCHEMA},
        {"structured_outputs": {"json": SCHEMA}},
    ],
)
async def test_every_way_to_give_a_schema_gives_an_answer_that_is_valid(
    client: Client, fields: dict[str, Any]
) -> None:
    whole = await answer(client, **fields)
    assert whole["finish_reason"] == "stop"
    jsonschema.validate(json.loads(whole["message"]["content"]), SCHEMA)


async def test_a_json_object_is_an_object_and_choices_of_one_request_differ(client: Client) -> None:
    body = {"messages": HELLO, "max_tokens": 400, "seed": 3, "n": 6, "temperature": 2}
    for fields in (
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
    ):
        status, whole = await client.post(CHAT, body | fields)
        assert status == 200, whole
        texts = [choice["message"]["content"] for choice in whole["choices"]]
        assert all(text.lstrip().startswith("{") for text in texts)
        ended = [c["message"]["content"] for c in whole["choices"] if c["finish_reason"] == "stop"]
        assert all(isinstance(json.loads(text), dict) for text in ended)
        assert len(set(texts)) > 1


async def test_a_grammar_holds_a_stream_too(client: Client) -> None:
    frames = await client.stream(
        CHAT,
        {
            "messages": HELLO,
            "max_tokens": 300,
            "temperature": 5,
            "seed": 2,
            "json_schema": json.dumps(SCHEMA),
        },
    )
    text = "".join(f["choices"][0]["delta"].get("content") or "" for f in frames[:-1])
    assert frames[-2]["choices"][0]["finish_reason"] == "stop"
    jsonschema.validate(json.loads(text), SCHEMA)


async def test_an_empty_field_restricts_nothing(client: Client) -> None:
    await answer(client, regex="", ebnf="", json_schema="", response_format={"type": "text"}, max_tokens=2)


async def test_without_the_library_a_grammar_is_refused_by_name_and_the_rest_works(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guidance, "is_installed", lambda: False)
    status, body = await client.post(CHAT, {"messages": HELLO, "regex": "a"})
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "regex", "unsupported_parameter")
    assert "llguidance" in body["error"]["message"]
    await answer(client, max_tokens=2, tools=TOOLS)


# Tools


def checked(call: dict[str, Any]) -> dict[str, Any]:
    assert set(call) == {"id", "type", "function"}
    assert call["type"] == "function"
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "get_weather":
        jsonschema.validate(arguments, SCHEMA)
    else:
        assert (call["function"]["name"], arguments) == ("what.time-1", {})
    return call


@pytest.mark.parametrize("parser", ["hermes", "llama3_json", "mistral"])
async def test_a_required_call_is_valid_in_every_format(serving: Serve, parser: str) -> None:
    async with serving(tool_call_parser=parser) as client:
        for seed in range(3):
            choice = await answer(
                client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed
            )
            assert choice["finish_reason"] == "tool_calls"
            assert choice["message"]["content"] is None
            (call,) = choice["message"]["tool_calls"]
            checked(call)


@pytest.mark.parametrize("name", ["get_weather", "what.time-1"])
async def test_a_named_function_is_the_one_that_is_called(client: Client, name: str) -> None:
    choice = await answer(client, tools=TOOLS, tool_choice={"type": "function", "function": {"name": name}})
    (call,) = choice["message"]["tool_calls"]
    assert checked(call)["function"]["name"] == name


async def test_several_calls_have_ids_of_their_own(client: Client) -> None:
    for seed in range(20):
        calls = (await answer(client, tools=[CLOCK], tool_choice="required", seed=seed, max_tokens=900))[
            "message"
        ]["tool_calls"]
        if len(calls) > 1:
            break
    assert len({checked(call)["id"] for call in calls}) == len(calls) > 1


async def test_a_call_in_a_stream_has_its_name_first_and_then_its_arguments(client: Client) -> None:
    asked = {
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "max_tokens": 300,
        "seed": 1,
        "temperature": 3,
    }
    frames = await client.stream(CHAT, {"messages": HELLO, **asked})
    assert frames.pop() == "[DONE]"
    choices = [frame["choices"][0] for frame in frames]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices[-1] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}
    deltas = [call for choice in choices[1:-1] for call in choice["delta"]["tool_calls"]]
    begin, *arguments = deltas
    assert begin["function"] == {"name": "get_weather", "arguments": ""}
    assert (begin["index"], begin["type"]) == (0, "function")
    assert len(arguments) > 3
    assert all(delta.keys() == {"index", "function"} for delta in arguments)
    text = "".join(delta["function"]["arguments"] for delta in arguments)
    jsonschema.validate(json.loads(text), SCHEMA)
    whole = await answer(client, **asked)
    assert text == whole["message"]["tool_calls"][0]["function"]["arguments"]


async def test_a_call_that_is_cut_by_length_has_that_finish_reason(client: Client) -> None:
    choice = await answer(client, tools=[WEATHER], tool_choice="required", max_tokens=30)
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}, {"tool_choice": "none"}])
async def test_a_model_that_calls_nothing_answers_in_text(client: Client, fields: dict[str, Any]) -> None:
    choice = await answer(client, tools=TOOLS, max_tokens=20, **fields)
    assert choice["finish_reason"] in ("stop", "length")
    assert choice["message"]["content"]
    assert "tool_calls" not in choice["message"]


async def test_a_model_that_calls_of_itself_is_understood(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grammar stands in for a model that has learnt to call: nothing tells the server that it will."""
    compiler = client.worker.engine._engine.grammars
    submit = client.worker.engine.submit
    text = 'Let me see.\n<tool_call>\n{"name": "what.time-1", "arguments": {}}\n</tool_call>'

    async def submit_held(request: Any) -> Any:
        matcher = compiler.compile(Grammar(kind=GrammarKind.REGEX, text=re.escape(text)))
        return await submit(replace(request, matcher=matcher))

    monkeypatch.setattr(client.worker.engine, "submit", submit_held)
    choice = await answer(client, tools=TOOLS)
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Let me see.")
    checked(choice["message"]["tool_calls"][0])
    refused = await answer(client, tools=TOOLS, tool_choice="none")
    assert (refused["finish_reason"], refused["message"]["content"]) == ("stop", text)
    assert "tool_calls" not in refused["message"]


async def test_a_model_of_unknown_format_refuses_tools_with_a_remedy(
    serving: Serve, model: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    (other / "chat_template.jinja").write_text("{{ tools }} <function={{ messages[0]['content'] }}>")
    async with serving(model=other) as client:
        status, body = await client.post(CHAT, {"messages": HELLO, "tools": TOOLS})
        assert (status, body["error"]["code"], body["error"]["param"]) == (
            400,
            "unsupported_parameter",
            "tools",
        )
        assert "--tool-call-parser" in body["error"]["message"]
        assert (await client.post(CHAT, {"messages": HELLO, "max_tokens": 1}))[0] == 200
    async with serving(model=other, tool_call_parser="hermes") as client:
        assert (await client.post(CHAT, {"messages": HELLO, "tools": TOOLS, "max_tokens": 1}))[0] == 200


async def test_tools_and_earlier_calls_stand_in_the_prompt(client: Client, model: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    text = ChatTemplate.from_directory(model).render(messages, tools=TOOLS)
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>' in text
    assert json.dumps(WEATHER) in text
    assert text.count("Be brief.") == 1
    _, tokens = await client.post("/tokenize", {"messages": messages, "tools": TOOLS})
    status, body = await client.post(CHAT, {"messages": messages, "tools": TOOLS, "max_tokens": 1})
    assert (status, body["usage"]["prompt_tokens"]) == (200, tokens["count"])


# Sampling


async def test_every_setting_reaches_the_sampler(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[SamplingParams] = []
    submit = client.worker.engine.submit

    async def spy(request: Any) -> Any:
        seen.append(request.params)
        return await submit(request)

    monkeypatch.setattr(client.worker.engine, "submit", spy)
    settings: dict[str, Any] = {
        "min_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "seed": 9,
        "ignore_eos": True,
    }
    sent = {
        **settings,
        "max_tokens": 3,
        "logit_bias": {"5": -100, "6": 1.5},
        "stop": "x",
        "stop_token_ids": [4],
    }
    for path, prompt in ((CHAT, {"messages": HELLO}), (TEXT, {"prompt": "x"})):
        assert (await client.post(path, {**prompt, **sent}))[0] == 200
        params = seen.pop()
        assert {name: getattr(params, name) for name in settings} == settings
        assert (params.max_tokens, params.logit_bias) == (3, {5: -100, 6: 1.5})
        assert (params.stop, params.stop_token_ids) == (("x",), {4})


async def test_a_bias_of_a_hundred_forces_a_token_and_bans_another(client: Client) -> None:
    _, body = await client.post("/tokenize", {"prompt": "z"})
    (z,) = body["tokens"]
    choice = await answer(client, TEXT, max_tokens=5, logit_bias={str(z): 100})
    assert choice["text"] == "zzzzz"
    choice = await answer(client, TEXT, max_tokens=50, logit_bias={str(z): -100})
    assert "z" not in choice["text"]


async def test_nothing_ends_before_min_tokens(client: Client) -> None:
    asked = {
        "prompt": "Hello",
        "max_tokens": 12,
        "temperature": 1,
        "seed": 4,
        "logit_bias": {"2": 100},
    }
    _, ended = await client.post(TEXT, asked)
    assert (ended["choices"][0]["finish_reason"], ended["usage"]["completion_tokens"]) == ("stop", 1)
    _, late = await client.post(TEXT, {**asked, "min_tokens": 6})
    assert (late["choices"][0]["finish_reason"], late["usage"]["completion_tokens"]) == ("stop", 7)


async def test_a_stop_string_is_not_looked_for_before_min_tokens(client: Client) -> None:
    asked = {
        "prompt": "Hello",
        "max_tokens": 12,
        "seed": 4,
        "logit_bias": {},
        "stop": ["z"],
        "ignore_eos": True,
    }
    _, body = await client.post("/tokenize", {"prompt": "z"})
    asked["logit_bias"] = {str(body["tokens"][0]): 100}
    assert (await client.post(TEXT, asked))[1]["choices"][0]["text"] == ""
    _, late = await client.post(TEXT, {**asked, "min_tokens": 6})
    assert late["choices"][0]["text"] == "z" * 6


# Log probabilities


async def test_a_chat_has_log_probabilities_of_tokens_and_alternatives(client: Client) -> None:
    choice = await answer(client, logprobs=True, top_logprobs=3, max_tokens=6, ignore_eos=True, **GREEDY)
    entries = choice["logprobs"]["content"]
    assert len(entries) == 6
    for entry in entries:
        assert entry.keys() == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["logprob"] <= 0
        tops = [top["logprob"] for top in entry["top_logprobs"]]
        assert tops == sorted(tops, reverse=True)
        assert (len(tops), tops[0]) == (3, entry["logprob"])
        assert entry["top_logprobs"][0]["token"] == entry["token"]
    text = bytes(byte for entry in entries for byte in entry["bytes"]).decode(errors="replace")
    assert text == choice["message"]["content"]


async def test_a_stream_has_the_same_log_probabilities_as_the_whole(client: Client) -> None:
    asked = {"logprobs": True, "top_logprobs": 2, "max_tokens": 8, "seed": 5, "temperature": 1}
    whole = await answer(client, **asked)
    frames = await client.stream(CHAT, {"messages": HELLO, **asked})
    streamed = [
        entry for frame in frames[:-1] for entry in (frame["choices"][0]["logprobs"] or {}).get("content", [])
    ]
    entries = whole["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [entry["token"] for entry in streamed]
    # A prefix hit computes in other shapes, so the last bits may differ.
    for one, other in zip(entries, streamed, strict=True):
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-4)
        assert [top["token"] for top in one["top_logprobs"]] == [
            top["token"] for top in other["top_logprobs"]
        ]


async def test_a_text_has_log_probabilities_in_its_own_format(client: Client) -> None:
    asked = {"logprobs": 2, "max_tokens": 6, "seed": 5, "temperature": 2, "ignore_eos": True}
    choice = await answer(client, TEXT, **asked)
    told = choice["logprobs"]
    assert {len(values) for values in told.values()} == {6}
    assert told["text_offset"][0] == 0
    for token, logprob, tops in zip(
        told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert tops[token] == pytest.approx(logprob)
        assert len(tops) in (2, 3)
    frames = (await client.stream(TEXT, {"prompt": "Hello", **asked}))[:-1]
    parts = [f["choices"][0]["logprobs"] for f in frames if f["choices"][0]["logprobs"]]
    for field, values in told.items():
        assert values == [value for part in parts for value in part[field]]


async def test_the_token_that_ends_an_answer_has_no_log_probability(client: Client) -> None:
    choice = await answer(client, logprobs=True, max_tokens=5, min_tokens=2, logit_bias={"2": 100}, **GREEDY)
    assert choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["content"]) == 2


# Echo


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echoed_prompt_stands_before_its_answers(client: Client, stream: bool) -> None:
    asked = {"prompt": ["One", "Two"], "max_tokens": 4, "n": 2, "seed": 1}
    _, plain = await client.post(TEXT, asked)
    wanted = [
        prompt + choice["text"]
        for prompt, choice in zip(["One", "One", "Two", "Two"], plain["choices"], strict=True)
    ]
    if not stream:
        _, echoed = await client.post(TEXT, {**asked, "echo": True})
        assert [choice["text"] for choice in echoed["choices"]] == wanted
        return
    texts = ["", "", "", ""]
    for frame in (await client.stream(TEXT, {**asked, "echo": True}))[:-1]:
        texts[frame["choices"][0]["index"]] += frame["choices"][0]["text"]
    assert texts == wanted


async def test_a_prompt_of_tokens_is_echoed_as_their_text(client: Client) -> None:
    _, body = await client.post("/tokenize", {"prompt": "Hello there"})
    choice = await answer(client, TEXT, prompt=body["tokens"], echo=True, max_tokens=1)
    assert choice["text"].startswith("Hello there")
