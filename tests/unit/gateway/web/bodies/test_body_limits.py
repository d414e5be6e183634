"""Body limits: bodies of few bytes and very many values are refused before they become objects."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import BadRequest
from gateway.domain.request import Surface
from gateway.web.bodies import body_limits
from gateway.web.bodies.body_limits import (
    CONTAINERS_MAX,
    DEPTH_MAX,
    FIELDS_MAX,
    KEYS_MAX,
    SLICE_BYTES,
    SMALL_REQUEST_BYTES,
    STRINGS_MAX,
    VALUES_MAX,
    check_values,
    value_is_deep,
)
from gateway.web.openai.body_fields import LOGPROBS_MAX, WHOLE_NUMBER_MAX
from gateway.web.openai.inference_requests import decode_openai_request

FEW_VALUES = 50_000
MANY_NUMBERS = b", [" + b", ".join([b"1"] * (FEW_VALUES + 2)) + b"]]"
"""The end of a list whose last value is a list of more numbers than `FEW_VALUES`."""
MESSAGES = [{"role": "user", "content": "hi"}]


def nested(levels):
    return "[" * levels + "]" * levels


def chat(extra=""):
    return f'{{"model":"m","messages":{json.dumps(MESSAGES)}{extra}}}'.encode()


def refused(body, surface=Surface.CHAT):
    with pytest.raises(BadRequest) as refusal:
        decode_openai_request(surface, body)
    return refusal.value.param


@pytest.mark.parametrize("field", ["tools", "nobody_knows_it"])
def test_a_value_may_be_as_deep_as_the_bound_and_no_deeper(field):
    assert decode_openai_request(Surface.CHAT, chat(f',"{field}":{nested(DEPTH_MAX)}')).fields[field]
    assert refused(chat(f',"{field}":{nested(DEPTH_MAX + 1)}')) == field


def test_messages_may_not_be_deep_either():
    def body(levels):
        return f'{{"model":"m","messages":[{{"role":"user","x":{nested(levels)}}}]}}'.encode()

    assert decode_openai_request(Surface.CHAT, body(DEPTH_MAX - 2))
    assert refused(body(DEPTH_MAX - 1)) == "messages"


def test_brackets_in_texts_are_no_depth_and_no_objects():
    text = "[{" * (CONTAINERS_MAX // 2 + 1) + ',"' * 10
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], "x": text}).encode()
    assert decode_openai_request(Surface.CHAT, body).prompt[0]["content"] == text


def test_many_shallow_values_are_no_depth():
    body = chat(f',"tools":{json.dumps([{"type": "function"}] * 1000)}')
    assert decode_openai_request(Surface.CHAT, body)


@pytest.mark.parametrize(
    "value",
    [
        "[" + ",".join(["[]"] * 2_000_000) + "]",
        "[" + ",".join(['{"role":""}'] * 1_000_000) + "]",
        "[" + ",".join(["1"] * (VALUES_MAX + 2)) + "]",
        "[" + ",".join(['"a"'] * (STRINGS_MAX + 1)) + "]",
        "{" + ",".join(f'"{n}":1' for n in range(KEYS_MAX + 1)) + "}",
    ],
    ids=["arrays", "objects", "numbers", "strings", "keys"],
)
def test_a_body_of_very_many_values_is_refused_at_once(value):
    for surface, field in ((Surface.CHAT, "messages"), (Surface.COMPLETIONS, "prompt")):
        body = f'{{"model":"m","{field}":{value}}}'.encode()
        started = time.process_time()
        assert refused(body, surface) is None
        # As objects they take the loop for half a minute; counting them takes a tenth of a second if all is quiet.
        assert time.process_time() - started < 10.0


def test_a_body_has_a_bound_of_top_level_fields():
    fields = [f',"k{n}":1' for n in range(FIELDS_MAX - 1)]
    assert decode_openai_request(Surface.CHAT, chat("".join(fields[:-1])))
    assert refused(chat("".join(fields))) is None


@given(
    st.lists(st.text(alphabet='[]{},:"\\x', max_size=9) | st.just("x" * SLICE_BYTES), max_size=6),
    st.integers(0, 9),
)
def test_a_string_that_is_cut_between_slices_is_still_a_string(texts, shift):
    """The numbers that follow are counted as they are, wherever quotes and backslashes fall."""
    strings = json.dumps(["x" * (SLICE_BYTES - shift), "\\" * shift, *texts]).encode()
    body = strings[:-1] + MANY_NUMBERS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_limits, "VALUES_MAX", FEW_VALUES)
        with pytest.raises(BadRequest):
            check_values(body)
        check_values(json.dumps(["x" * (SLICE_BYTES - shift), *texts, ",{" * (FEW_VALUES + 2)]).encode())


def test_what_a_body_becomes_is_estimated_by_its_values():
    def estimate(value):
        return check_values(json.dumps({"x": value}).encode())

    assert estimate("x") == SMALL_REQUEST_BYTES
    text = estimate("x" * 400_000)
    assert 4 * 400_000 <= text < 5 * 400_000
    assert estimate("a,{b:c} " * 50_000) == pytest.approx(text, rel=0.01)
    assert estimate([1.5] * 80_000) > 2 * text
    assert estimate({str(n): 1 for n in range(40_000)}) > 3 * text


def test_a_prompt_of_a_million_token_ids_is_read():
    body = b'{"model":"m","prompt":[' + b",".join([b"7"] * 1_000_000) + b"]}"
    assert len(decode_openai_request(Surface.COMPLETIONS, body).prompt[0]) == 1_000_000


@given(st.recursive(st.text(alphabet='[]{},"\\x', max_size=9), lambda inner: st.lists(inner, max_size=3)))
def test_the_depth_is_that_of_the_decoded_value(value):
    def depth(value):
        return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0

    wrapped = value
    for _ in range(DEPTH_MAX - 2):
        wrapped = [wrapped]
    assert value_is_deep(json.dumps(wrapped).encode()) is (depth(wrapped) > DEPTH_MAX)


@given(st.text(alphabet='[]{},"\\', max_size=9), st.booleans())
def test_depth_is_found_behind_any_string(text, long):
    """Strings may hold brackets, quotes and backslashes in any order; a long value is looked at in another way."""
    padding = ["x" * SLICE_BYTES] if long else []
    for levels in (DEPTH_MAX - 1, DEPTH_MAX):
        inner = json.loads(nested(levels))
        assert value_is_deep(json.dumps([text, *padding, inner, text]).encode()) is (levels == DEPTH_MAX)


@given(st.text(alphabet='[]{},"\\\n', max_size=50))
def test_what_stands_in_strings_is_never_counted(text):
    # So many that the cheap count is not enough.
    check_values(json.dumps([text, "{" * (CONTAINERS_MAX + 1), text]).encode())


@pytest.mark.parametrize("name", ["top_logprobs", "prompt_logprobs", "logprobs"])
def test_log_probabilities_of_the_whole_vocabulary_are_not_to_be_had(name):
    assert decode_openai_request(Surface.CHAT, chat(f',"{name}":{LOGPROBS_MAX}')).fields[name]
    assert refused(chat(f',"{name}":{LOGPROBS_MAX + 1}')) == name
    assert refused(chat(f',"{name}":-1')) == name
    assert refused(b'{"model":"m","prompt":"hi","logprobs":100000}', Surface.COMPLETIONS) == "logprobs"


def test_an_output_bound_that_no_counter_holds_is_refused():
    assert decode_openai_request(Surface.CHAT, chat(f',"max_tokens":{WHOLE_NUMBER_MAX}')).output_tokens_max
    assert refused(chat(f',"max_tokens":{WHOLE_NUMBER_MAX + 1}')) == "max_tokens"
    assert refused(chat(',"max_completion_tokens":' + "9" * 30)) == "max_completion_tokens"


def called(*arguments):
    calls = [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": each}} for each in arguments
    ]
    messages = [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": calls}]
    return json.dumps({"model": "m", "messages": messages}).encode()


@pytest.mark.parametrize(
    "arguments",
    [
        ["[" + ",".join(["{}"] * (CONTAINERS_MAX + 1)) + "]"],
        ["[" + ",".join(["{}"] * (CONTAINERS_MAX // 2)) + "]"] * 3,
        ['"', "[" + ",".join(["{}"] * (CONTAINERS_MAX + 1))],
        ["[" * 99_000 + "7" * 9000 + "]" * 99_000],
        ["[" + ",".join(["7" * 4000] * 100) + "]"],
    ],
    ids=["one call", "several calls", "after an open string", "deep", "long numbers"],
)
def test_the_arguments_of_tool_calls_have_the_bounds_of_a_body(arguments):
    assert refused(called(*arguments)) in ("messages", None)


def test_long_arguments_of_texts_are_accepted():
    arguments = json.dumps({"file": "[{,:" * 100_000 + "7" * 4000})
    assert decode_openai_request(Surface.CHAT, called(arguments))


@pytest.mark.parametrize("field", ["messages", "tools"])
def test_numbers_of_thousands_of_digits_are_refused(field):
    numbers = f"[{','.join(['7' * 4000] * 100)}]"
    value = f'[{{"role":"user","x":{numbers}}}]' if field == "messages" else numbers
    assert refused(f'{{"model":"m","{field}":{value}}}'.encode()) is None
