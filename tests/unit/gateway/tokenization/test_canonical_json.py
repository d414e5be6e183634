"""Canonical text written in slices is what it is in one piece."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokenization import canonical_json

TEXT = st.text(st.sampled_from('ab"\\\n\u0001é漢😀'), max_size=40)
VALUE = st.recursive(
    TEXT | st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(messages=st.lists(st.dictionaries(TEXT, VALUE, max_size=4), max_size=4), size=st.integers(1, 10))
def test_it_is_the_same_in_slices(messages, size):
    whole = msgspec.json.encode(messages, order="sorted")
    assert canonical_json.canonical_json(messages) == whole
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LONG_CHARACTERS", "SLICE_CHARACTERS"):
            patch.setattr(canonical_json, name, size)
        assert canonical_json.canonical_json(messages) == whole
