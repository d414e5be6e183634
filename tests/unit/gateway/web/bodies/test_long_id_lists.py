"""Long lists of token ids, decoded in slices, with other work in between."""

import asyncio
import json
from array import array
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import BadRequest
from gateway.domain.request import Surface
from gateway.web.bodies import long_id_lists
from gateway.web.bodies.body_decoding import decode_in_thread_if_long
from gateway.web.bodies.long_id_lists import decode_token_ids
from gateway.web.openai import inference_requests
from tests.fakes.loop_gate import LoopGate


@given(
    ids=st.lists(st.integers(0, 2**32 - 1), min_size=1),
    size=st.integers(1, 40),
    blank=st.sampled_from(["", " ", "\n"]),
)
def test_ids_are_the_same_wherever_they_are_cut(ids, size, blank):
    raw = f"{blank}[{blank}" + f"{blank},{blank}".join(map(str, ids)) + f"{blank}]{blank}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_id_lists, "SLICE_BYTES", size)
        assert decode_token_ids(raw.encode()) == array("I", ids)


@pytest.mark.parametrize("wrong", ["-1", "4294967296", "1.5", '"a"', "null", "[2]", "[2, 3]", "{}"])
def test_what_is_no_id_is_named_by_its_place_wherever_the_list_is_cut(wrong, monkeypatch):
    monkeypatch.setattr(long_id_lists, "SLICE_BYTES", 2)
    with pytest.raises(msgspec.ValidationError, match=r"\$\[3\]"):
        decode_token_ids(f"[10, 20, 30, {wrong}, 40]".encode())


@pytest.mark.parametrize("prompt", [[7, -1], [7, "a"], [[7], 7], ["a", 7], [[[7]]], 7, {}], ids=str)
@pytest.mark.parametrize(
    ("surface", "field"), [(Surface.COMPLETIONS, "prompt"), (Surface.EMBEDDINGS, "input")], ids=str
)
def test_a_prompt_that_is_none_is_refused_by_its_field(surface, field, prompt):
    with pytest.raises(BadRequest) as raised:
        inference_requests.decode_openai_request(surface, json.dumps({"model": "m", field: prompt}).encode())
    assert raised.value.param == field
    assert field in raised.value.message


async def test_the_event_loop_goes_on_while_a_long_body_is_read(monkeypatch):
    gate = LoopGate()
    monkeypatch.setattr(long_id_lists, "yield_gil", gate)
    body = json.dumps({"model": "m", "prompt": list(range(1_000_000))}).encode()
    request, _ = await asyncio.gather(
        decode_in_thread_if_long(
            body, partial(inference_requests.decode_openai_request, Surface.COMPLETIONS)
        ),
        gate.open(),
    )
    assert request.prompt == [array("I", range(1_000_000))]


def in_one_piece(surface, body):
    with pytest.MonkeyPatch.context() as patch:
        for module in (long_id_lists, inference_requests):
            patch.setattr(module, "LONG_BYTES", 10**9)
        return told(surface, body)


def in_slices(surface, body, size=4):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_id_lists, "SLICE_BYTES", size)
        for module in (long_id_lists, inference_requests):
            patch.setattr(module, "LONG_BYTES", 0)
        return told(surface, body)


def told(surface, body):
    """All that a body is read to; None if it is refused."""
    try:
        request = inference_requests.decode_openai_request(surface, body)
    except BadRequest:
        return None
    fields = {name: bytes(value) for name, value in request.fields.items()}
    return (
        fields,
        [list(prompt) if isinstance(prompt, array) else prompt for prompt in request.prompt],
        request.stream,
    )


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 99) | st.text(max_size=5) | st.just("prompt"),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["prompt", "input", "a"]), inner)
    ),
    max_leaves=8,
)


@given(
    fields=st.lists(
        st.tuples(
            st.sampled_from(["prompt", "input", "user", "metadata", "stream"]),
            VALUES | st.lists(st.integers(0, 9999), min_size=2, max_size=20),
        ),
        max_size=5,
    ),
    surface=st.sampled_from([Surface.COMPLETIONS, Surface.EMBEDDINGS]),
    blank=st.sampled_from(["", " ", "\n\t"]),
)
def test_a_body_read_in_slices_has_the_same_values(fields, surface, blank):
    """Also with a field twice, or a name of a field where none is."""
    pairs = [f'"{name}"{blank}:{blank}{json.dumps(value)}' for name, value in [("model", "m"), *fields]]
    body = ("{" + f"{blank},".join(pairs) + "}").encode()
    assert in_slices(surface, body) == in_one_piece(surface, body)


@pytest.mark.parametrize(
    "prompt",
    [
        "[1,2,3,4,]",
        "[1,2,3,4, ]",
        "[1,2,3,4,,5]",
        "[1,2,3,4,   ,5]",
        "[1,2,3,[4]",
        "[1,2,3 4,5]",
        "[1,2,3,4",
        '[1,2,3,"]",5]',
        "[1,2,[3,4],5]",
        "[1,2,3,04]",
    ],
    ids=str,
)
@pytest.mark.parametrize("more", ["", ',"x":[1]', ',"prompt":[1,2,3,4]'], ids=["alone", "before", "twice"])
@pytest.mark.parametrize(
    ("surface", "field"),
    [
        (surface, field)
        for surface in (Surface.COMPLETIONS, Surface.EMBEDDINGS)
        for field in ("prompt", "input")
    ],
    ids=str,
)
def test_what_is_no_list_of_ids_is_refused_in_slices_as_in_one_piece(surface, field, prompt, more):
    """Also where the field is none of this surface's, and goes to the worker as it came."""
    own = "prompt" if surface is Surface.COMPLETIONS else "input"
    before = "" if field == own else f'"{own}":"a",'
    body = f'{{"model":"m",{before}"{field}":{prompt}{more}}}'.encode()
    for size in range(1, 8):
        assert in_slices(surface, body, size) == in_one_piece(surface, body)


def test_a_long_list_of_ids_is_not_read_with_the_rest(monkeypatch):
    """Or none of the above would be about slices."""
    monkeypatch.setattr(long_id_lists, "LONG_BYTES", 0)
    monkeypatch.setattr(long_id_lists, "SLICE_BYTES", 4)
    fields = long_id_lists.decode_fields(b'{"model":"m","prompt":[1,2,no,4],"n":1}', "prompt")
    assert {name: bytes(value) for name, value in fields.items()} == {
        "model": b'"m"',
        "prompt": b"[1,2,no,4]",
        "n": b"1",
    }
