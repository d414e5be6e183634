"""Tool calls as models write them, cut anywhere; and what is no call stays text."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine_server.tools.call_parser import CallDelta, CallParser
from workers.engine_server.tools.formats import FORMATS, HERMES, LLAMA3, MISTRAL, CallFormat, detect_format

NAMES = frozenset({"f", "get_weather", "sear.ch-1"})
FORMS = (HERMES, LLAMA3, MISTRAL)


def read(
    form: CallFormat, parts: list[str], **options: Any
) -> tuple[str, list[tuple[str, str]], list[CallDelta]]:
    """Text, calls (name and arguments), and the pieces that they came in."""
    parser = CallParser(form, NAMES, **options)
    pieces = [piece for part in parts for piece in parser.push(part)] + parser.end()
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    calls = [piece for piece in pieces if isinstance(piece, CallDelta)]
    whole: list[tuple[str, str]] = []
    for piece in calls:
        if piece.id is not None:
            assert piece.index == len(whole)
            whole.append((piece.name or "", ""))
        assert piece.index == len(whole) - 1
        whole[-1] = (whole[-1][0], whole[-1][1] + piece.arguments)
    assert parser.calls == len(whole)
    return text, whole, calls


def written(form: CallFormat, calls: list[tuple[str, str]]) -> str:
    objects = [
        f'{{"name": {json.dumps(name)}, "{form.arguments}": {arguments}}}' for name, arguments in calls
    ]
    return form.first + form.join.join(objects) + form.last


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


Arguments = st.dictionaries(
    st.text('ab"}\\{', max_size=3),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text('x"\\{}[],é🦊\n</tool_call>', max_size=8),
        lambda inner: (
            st.lists(inner, max_size=2) | st.dictionaries(st.text("k", max_size=1), inner, max_size=2)
        ),
        max_leaves=4,
    ),
    max_size=3,
)
Calls = st.lists(st.tuples(st.sampled_from(sorted(NAMES)), Arguments), min_size=1, max_size=3)


@given(form=st.sampled_from(FORMS), calls=Calls, places=st.lists(st.integers(0, 10_000), max_size=30))
def test_calls_are_read_the_same_however_the_text_is_cut(
    form: CallFormat, calls: list[tuple[str, Any]], places: list[int]
) -> None:
    expected = [(name, json.dumps(arguments)) for name, arguments in calls]
    text, found, _ = read(form, cut(written(form, expected), places))
    assert (text, found) == ("", expected)


@given(
    form=st.sampled_from(FORMS),
    text=st.text('{}[]":;, \nab<>/_|', max_size=40)
    | st.sampled_from(
        [
            "<tool_call>",
            "<tool_call>\n{}",
            '<tool_call>{"name": "unknown", "arguments": {}}</tool_call> and',
            '<tool_call>{"name": "f", "arguments": 5}</tool_call>',
            '<tool_call>{"name": 5}</tool_call>',
            '<tool_call>{"na',
            '{"answer": 42}',
            '{"name": "unknown", "parameters": {}}',
            '{"name": "Ada", "age": 36}',
            "[TOOL_CALLS]",
            "[TOOL_CALLS] and so on",
            '[TOOL_CALLS][{"name": "nobody", "arguments": {}}]',
            "a < b, [TOO many",
        ]
    ),
    places=st.lists(st.integers(0, 10_000), max_size=20),
)
def test_what_is_no_call_comes_out_as_it_was(form: CallFormat, text: str, places: list[int]) -> None:
    found, calls, _ = read(form, cut(text, places))
    assert (found, calls) == (text, [])


def test_text_around_calls_is_returned_and_the_space_between_is_not() -> None:
    call = written(HERMES, [("f", "{}")])
    text, calls, _ = read(HERMES, [f"Let me look.\n{call}\n{call}\n"])
    assert (text, len(calls)) == ("Let me look.", 2)


def test_arguments_come_while_they_are_written_and_the_name_comes_first() -> None:
    parser = CallParser(HERMES, NAMES)
    assert parser.push('Hm. <tool_call>\n{"name": "get_wea') == ["Hm."]
    assert parser.push('ther", "arguments":') == []
    begin, first = parser.push(' {"city": "Os')
    assert isinstance(begin, CallDelta)
    assert (begin.index, begin.name, begin.arguments) == (0, "get_weather", "")
    assert begin.id
    assert first == CallDelta(index=0, arguments='{"city": "Os')
    assert parser.push('lo"}}\n</tool_call>') == [CallDelta(index=0, arguments='lo"}')]


def test_arguments_that_come_before_the_name_wait_for_it() -> None:
    text = '<tool_call>{"arguments": {"a": 1}, "id": [7], "name": "f"}</tool_call>'
    assert read(HERMES, list(text))[:2] == ("", [("f", '{"a": 1}')])


def test_a_call_without_arguments_has_empty_ones() -> None:
    assert read(HERMES, ['<tool_call>{"name": "f"}</tool_call>'])[1] == [("f", "{}")]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_call_that_is_cut_short_keeps_what_there_is_of_its_arguments(form: CallFormat) -> None:
    whole = written(form, [("f", '{"a": "bcd"}')])
    text, calls, _ = read(form, list(whole[: whole.index("cd")]))
    assert (text, calls) == ("", [("f", '{"a": "b')])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_only_the_first_call_counts_where_only_one_is_wanted(form: CallFormat) -> None:
    whole = written(form, [("f", "{}"), ("get_weather", "{}")]) + " and text"
    text, calls, _ = read(form, list(whole), only_first=True)
    assert (text, calls) == ("", [("f", "{}")])


def test_llama_may_write_its_marker_or_none() -> None:
    call = '{"name": "f", "parameters": {"x": 1}}'
    for text in (call, "<|python_tag|>" + call, "\n " + call):
        assert read(LLAMA3, list(text))[:2] == ("", [("f", '{"x": 1}')])
    assert read(LLAMA3, list("Well: " + call))[:2] == ("Well: " + call, [])


def test_ids_are_new_each_time_and_fit_the_templates() -> None:
    assert len({HERMES.new_id() for _ in range(100)}) == 100
    assert all(len(new) == 9 and new.isalnum() for new in (MISTRAL.new_id() for _ in range(100)))


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", HERMES),
        ("... {{ tools }} ... <tool_call>", HERMES),
        ("... [AVAILABLE_TOOLS] ... [TOOL_CALLS] ... {{ tools }}", MISTRAL),
        ("... <|python_tag|> ... {{ tools }}", LLAMA3),
        ("""... {{ '"parameters": ' }} ... {{ tools }}""", LLAMA3),
        ("... <tool_call> ... <function=name> ... {{ tools }}", None),
        ("... [TOOL_CALLS] ... [ARGS] ... {{ tools }}", None),
        ("... {{ tools }} ...", None),
    ],
)
def test_a_template_shows_how_its_model_writes_calls(template: str, form: CallFormat | None) -> None:
    assert detect_format(template) is form


def test_every_format_is_known_by_its_own_name() -> None:
    assert all(FORMATS[form.name] is form for form in FORMATS.values())
