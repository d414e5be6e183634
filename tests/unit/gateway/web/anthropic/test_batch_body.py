"""The body of a message batch, cut anywhere: the same requests come out, and one is in memory at a time."""

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import BadRequest
from gateway.web.anthropic.batch_body import BatchRequestSplitter

TEXT = st.text(alphabet='ab"\\{}[],: \n\té☃\u2028😀', max_size=12)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
REQUESTS = st.lists(st.dictionaries(TEXT, VALUE, max_size=4), max_size=5)


def split(body, cuts=(), bytes_max=1024):
    splitter = BatchRequestSplitter(bytes_max)
    edges = [0, *sorted(cuts), len(body)]
    pieces = [body[start:end] for start, end in pairwise(edges)]
    found = [request for piece in pieces for request in splitter.feed(piece)]
    splitter.end()
    return found


@given(
    requests=REQUESTS,
    before=st.dictionaries(TEXT, VALUE, max_size=2),
    after=st.dictionaries(TEXT, VALUE, max_size=2),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
    seed=st.integers(0, 2**32),
)
def test_the_requests_are_those_of_the_body_wherever_it_is_cut(
    requests, before, after, ascii_only, indent, seed
):
    whole = {**before, "requests": requests, **after}
    body = json.dumps(whole, ensure_ascii=ascii_only, indent=indent).encode()
    chance = random.Random(seed)
    cuts = [chance.randrange(len(body) + 1) for _ in range(chance.randrange(8))]
    assert [json.loads(request) for request in split(body, cuts)] == requests
    assert [json.loads(request) for request in split(body, range(1, len(body)))] == requests


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"{}",
        b'{"requests": 1}',
        b'{"requests": [1]}',
        b'{"requests": [0]}',
        b'{"requests": [{}, 0]}',
        b'{"requests": [{},]}',
        b'{"requests": [{} {}]}',
        b'{"requests": [{}',
        b'{"requests": [{"a": "',
        b'{"requests": [{"a": 1}',
        b'{"requests": [{}]} x',
        b'{"requests": [{}]}}',
        b'}{"requests": [{}]}',
        b'{"requests": [[{}]]}',
        b'{"requests": {"requests": [{}]}}',
        b'{"x\\"requests": [{}]}',
        b'{"requests": [{}], "requests": [{}]}',
        b'["requests": [{}]]',
        b'"requests": [{}]',
    ],
)
def test_what_is_no_list_of_requests_is_refused(body):
    with pytest.raises(BadRequest):
        split(body)


def test_only_the_top_level_requests_are_meant():
    body = b'{"a": {"requests": [{"x": 1}]}, "b": ["requests", [{"y": 1}]], "requests": [{"z": 1}]}'
    assert split(body) == [b'{"z": 1}']


def test_a_request_has_so_many_bytes_at_most_and_so_has_what_stands_beside():
    request = b'{"a": "%b"}' % (b"x" * 91)
    assert split(b'{"requests": [%b]}' % request, bytes_max=100) == [request]
    with pytest.raises(BadRequest) as refused:
        split(b'{"requests": [{}, {"a": "%b"}]}' % (b"x" * 92), bytes_max=100)
    assert refused.value.param == "requests.1"
    with pytest.raises(BadRequest):
        split(b'{"requests": [], "x": "%b"}' % (b"x" * 1024**2))


def test_one_request_is_in_memory_at_a_time():
    splitter = BatchRequestSplitter(1024**2)
    held = []
    for _ in splitter.feed(b'{"requests": ['):
        pass
    for number in range(50):
        request = b'%b{"a": "%b"}' % (b"," if number else b"", b"x" * 10_000)
        assert len(list(splitter.feed(request))) == 1
        held.append(splitter.bytes_held)
    assert max(held) < 200
