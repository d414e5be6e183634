"""The fast reading of chunks that differ only in their text gives the same result as decoding each."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import GatewayError
from gateway.domain.request import Surface
from gateway.relay.chunk_template import ChunkTemplate, chunk_template
from gateway.relay.stream_aggregator import StreamAggregator

texts = st.text(
    st.one_of(st.sampled_from('"\\{}:,\n é\u2028'), st.characters(exclude_categories=["Cs"])), max_size=6
)
names = st.sampled_from(["content", "reasoning_content", "text", "refusal", "co\u00f6", 'a"b'])
others = st.sampled_from(
    [
        {},
        {"role": "assistant"},
        {"role": None},
        {"tool_calls": []},
        {"reasoning": "thought"},
        {"extra": {"content": "inside"}},
        {"number": 3},
        {"flag": True},
        {"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]},
    ]
)
around = st.sampled_from(
    [
        {},
        {"finish_reason": None},
        {"finish_reason": "stop"},
        {"logprobs": {"content": [{"token": "a"}]}},
        {"logprobs": None, "stop_reason": 7},
        {"text": "beside"},
    ]
)
heads = st.sampled_from(
    [{}, {"id": "a", "created": 1}, {"id": "b", "created": 2}, {"usage": {"n": 1}}, {"content": "top"}]
)


@st.composite
def streams(draw):
    """Runs of chunks that are alike, one kind after the other."""
    chunks = []
    for _ in range(draw(st.integers(1, 4))):
        name, delta, choice, head = draw(names), draw(others), draw(around), draw(heads)
        index = draw(st.sampled_from([0, 0, 0, 1]))
        for text in draw(st.lists(texts, min_size=1, max_size=5)):
            said = {**delta, name: text}
            where = {"delta": said} if draw(st.booleans()) or name != "text" else said
            chunks.append({**head, "choices": [{"index": index, **where, **choice}]})
    ascii_only = draw(st.booleans())
    return [json.dumps(chunk, ensure_ascii=ascii_only).encode() for chunk in chunks]


def aggregated(surface, payloads):
    aggregator = StreamAggregator(surface)
    try:
        for payload in payloads:
            aggregator.add(payload)
        return aggregator.body(done=True)
    except GatewayError as err:
        return type(err)


@given(streams(), st.sampled_from([Surface.CHAT, Surface.COMPLETIONS]))
def test_an_answer_is_the_same_whether_its_chunks_are_alike_or_not(payloads, surface):
    # With another blank before each of them, no two begin alike.
    apart = [b" " * (number + 1) + payload for number, payload in enumerate(payloads)]
    assert aggregated(surface, payloads) == aggregated(surface, apart)


@given(texts, texts)
def test_the_piece_of_a_chunk_that_is_alike_is_its_text(first, second):
    def chunk(text):
        return json.dumps({"choices": [{"index": 0, "delta": {"content": text}}], "id": "x"}).encode()

    template = chunk_template(chunk(first), "content", first)
    assert template is not None
    assert template.text_of(chunk(second)) == second


@pytest.mark.parametrize(
    "payload",
    [
        b'{"content":"a","more":"b"}',
        b'{"content":"a\\"}',
        b'{"content":"\xff"}',
        b'{"content":"\\ud83d"}',
        b'{"content":"a\nb"}',
        b'{"content":"}',
        b'{"content":null}',
        b"",
    ],
)
def test_what_is_not_alike_is_left_to_the_whole_decoder(payload):
    assert ChunkTemplate(b'{"content":"', b'"}').text_of(payload) is None


@pytest.mark.parametrize(
    "payload",
    [
        b'{"content":"top","choices":[{"delta":{"content":"a"}}]}',
        b'{"content":"top","choices":[{"delta":{"cont\\u0065nt":"a"}}]}',
        b'{"choices":[{"delta":{"content":"b","content":"a"}}]}',
        b'{"choices":[{"delta":{"content":"a"},"delta":{"conten\\u0074":"a"}}]}',
        b'{"a\\"content":"a","choices":[{"delta":{"conten\\u0074":"a"}}]}',
    ],
)
def test_a_chunk_in_which_the_name_stands_elsewhere_too_has_no_refrain(payload):
    assert chunk_template(payload, "content", "a") is None


@pytest.mark.parametrize("text", [b"a" * 500_000, b'\\"' * 500_000], ids=["plain", "escaped"])
def test_a_refrain_of_a_huge_chunk_takes_no_more_memory_than_the_chunk(text):
    payload = b'{"choices":[{"delta":{"content":"%b"}}]}' % text
    tracemalloc.start()
    try:
        assert chunk_template(payload, "content", json.loads(b'"%b"' % text)) is not None
        assert tracemalloc.get_traced_memory()[1] < 8 * len(payload)
    finally:
        tracemalloc.stop()
