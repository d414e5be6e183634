"""Very long strings of a body: read in slices they are what they are in one piece."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import BadRequest
from gateway.domain.request import Surface
from gateway.web.bodies import long_strings
from gateway.web.openai import inference_requests

TEXT = st.text(st.sampled_from('a"\\\n\u0001é漢😀u0'), max_size=60)
VALUE = st.recursive(
    TEXT | st.none() | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def short(monkeypatch):
    """Everything is long."""
    for name in ("LONG_STRING_BYTES", "SLICE_BYTES"):
        monkeypatch.setattr(long_strings, name, 3)
    monkeypatch.setattr(inference_requests, "LONG_BYTES", 0)


def told(body):
    try:
        return inference_requests.decode_openai_request(Surface.CHAT, body).prompt
    except BadRequest as err:
        return err.message


def in_slices(body, size):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LONG_STRING_BYTES", "SLICE_BYTES"):
            patch.setattr(long_strings, name, size)
        patch.setattr(inference_requests, "LONG_BYTES", 0)
        return told(body)


@given(
    contents=st.lists(VALUE, min_size=1, max_size=3),
    more=st.dictionaries(st.sampled_from(["model", "user", "tools", "stream"]), VALUE),
    size=st.integers(1, 20),
    ascii_only=st.booleans(),
)
def test_a_chat_read_in_slices_has_the_same_values(contents, more, size, ascii_only):
    messages = [{"role": "user", "content": content} for content in contents]
    body = json.dumps({"model": "m", "messages": messages, **more}, ensure_ascii=ascii_only).encode()
    assert in_slices(body, size) == told(body)


@given(text=TEXT, at=st.integers(0, 80), wrong=st.sampled_from(["\\", "\\x", "\\ud83d", '"', "\n", "\\u12"]))
def test_what_is_no_json_is_refused_in_the_same_words(text, at, wrong):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]})
    body = (body[: 50 + at] + wrong + body[50 + at :]).encode()
    assert in_slices(body, 3) == told(body)


@pytest.mark.parametrize(
    "text", ["\\" * 1000, '"' * 1000, '\\"' * 500, "😀" * 300, "\\u0041" * 100], ids=repr
)
@pytest.mark.parametrize("ascii_only", [True, False], ids=["escaped", "as it is"])
def test_dense_escapes_are_read(text, ascii_only):
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": text}]}, ensure_ascii=ascii_only
    )
    assert in_slices(body.encode(), 5) == [{"role": "user", "content": text}]


def test_the_same_field_twice_is_the_last_one(short):
    long = json.dumps([{"role": "user", "content": "a long text"}])
    body = f'{{"model":"m","messages":{long},"messages":[{{"role":"user","content":"b"}}]}}'
    assert told(body.encode()) == [{"role": "user", "content": "b"}]


def test_a_name_that_is_too_long_stays_too_long(short):
    body = {"model": "m" * 300, "messages": [{"role": "user", "content": "hello there"}]}
    assert told(json.dumps(body).encode()) == "The model's name has at most 200 characters."


def test_ten_megabytes_are_one_string_again():
    text = 'a word, "one" more \\ é 漢 😀\n' * 300_000
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": text}]}, ensure_ascii=False
    ).encode()
    assert told(body) == [{"role": "user", "content": text}]
    quotes = msgspec.json.encode({"messages": [{"content": "word " * 200_000}]})
    rest, strings = long_strings.take_long_strings(quotes)
    assert len(rest) < 200
    assert strings == ["word " * 200_000]


@pytest.mark.parametrize("dense", ["\\\\", "\\ud83d\\ude00"], ids=str)
def test_where_no_place_is_good_for_a_cut_few_are_tried(dense):
    """Looked at byte by byte, ten megabytes would be seconds."""

    class Counted(bytes):
        looks = 0

        def rfind(self, *args):
            Counted.looks += 1
            return super().rfind(*args)

    content = (dense * (4_000_000 // len(dense))).encode()
    body = Counted(b'{"messages":[{"role":"user","content":"' + content + b'x"}]}')
    _, (string,) = long_strings.take_long_strings(body)
    assert string == msgspec.json.decode(b'"' + content + b'x"')
    assert Counted.looks < 1000
