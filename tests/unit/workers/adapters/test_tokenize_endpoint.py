"""What /tokenize answers: long answers are read in slices, beside other work."""

import asyncio
import json
from array import array
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.loop_gate import LoopGate
from workers.adapter import WorkerFailed
from workers.adapters import tokenize_endpoint
from workers.adapters.tokenize_endpoint import decode_at_once, decode_in_slices, tokenize


class Engine:
    def __init__(self, text):
        self.text = text

    async def post(self, path, body, seconds_max, bytes_max):
        return 200, self.text


def told(read, text):
    try:
        return read(text)
    except (msgspec.DecodeError, OverflowError):
        return None


@given(
    ids=st.lists(st.integers(-1, 2**32), max_size=20),
    more=st.dictionaries(st.sampled_from(["count", "token_strs", "tokens_", "a"]), st.none() | st.text()),
    nested=st.booleans(),
    size=st.integers(1, 9),
)
def test_an_answer_read_in_slices_has_the_same_values(ids, more, nested, size):
    inner = {"a": {"tokens": [7, 8]}} if nested else {}
    text = json.dumps({**inner, **more, "tokens": ids, "max": 1}).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenize_endpoint, "SLICE_BYTES", size)
        assert told(decode_in_slices, text) == told(decode_at_once, text)


@pytest.mark.parametrize(
    "tokens",
    ["[1,2,]", "[1,,2]", "[1,2, ]", "[1, ,2]", "[1,[2],3]", '[1,"]",3]', "[1,2", "[1.5,2]", "[[1,2]]"],
    ids=str,
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_what_is_no_list_of_tokens_is_none_in_slices_either(tokens, size, monkeypatch):
    monkeypatch.setattr(tokenize_endpoint, "SLICE_BYTES", size)
    text = f'{{"tokens":{tokens},"count":2}}'.encode()
    assert told(decode_in_slices, text) is told(decode_at_once, text) is None


async def test_the_event_loop_goes_on_while_a_long_answer_is_read(monkeypatch):
    gate = LoopGate()
    monkeypatch.setattr(tokenize_endpoint, "time", SimpleNamespace(sleep=gate))
    text = json.dumps({"tokens": list(range(1_000_000))}).encode()
    tokens, _ = await asyncio.gather(tokenize(Engine(text), {}, 1.0), gate.open())
    assert tokens == array("I", range(1_000_000))


async def test_a_long_answer_that_is_none_is_no_answer():
    with pytest.raises(WorkerFailed):
        await tokenize(Engine(b'{"tokens":[' + b"1," * 200_000 + b"]}"), {}, 1.0)
