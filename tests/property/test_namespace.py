"""A namespace and its bytes are equivalent, whatever the names of its parts are."""

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from radix_cache.namespace import Namespace

NAMESPACES = st.builds(
    Namespace,
    model=st.text(),
    block_size=st.integers(1, 4096),
    group=st.text(),
)


@given(NAMESPACES)
def test_what_was_packed_is_unpacked(namespace):
    assert Namespace.unpack(namespace.packed()) == namespace


@given(NAMESPACES, st.data())
def test_a_piece_of_the_bytes_is_refused(namespace, data):
    packed = namespace.packed()
    end = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(ValueError):
        Namespace.unpack(packed[:end])
    with pytest.raises(ValueError):
        Namespace.unpack(packed + packed[:end] + b"x")


@given(st.binary(max_size=60))
@example(b"\0\0\0\0" * 4 + b"\x02\0\0\0" + b"16")
@example(b"\0\0\0\0" + b"\x01\0\0\0" + b"a" + b"\0\0\0\0" * 2 + b"\x02\0\0\0" + b"16")
@example(b"\0\0\0\0" * 4 + b"\x01\0\0\0\xff")
def test_other_bytes_are_refused_or_are_exactly_a_namespaces(data):
    with suppress(ValueError):
        assert Namespace.unpack(data).packed() == data
