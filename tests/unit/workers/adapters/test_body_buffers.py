"""A request's JSON in pieces is the JSON that it would be in one."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.adapters import body_buffers


@given(
    values=st.dictionaries(
        st.text(max_size=5), st.integers() | st.text(max_size=30) | st.lists(st.integers())
    ),
    long=st.integers(0, 20),
)
def test_together_they_are_what_it_would_be_in_one(values, long):
    fields = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_buffers, "LONG_BYTES", long)
        written = body_buffers.json_buffers(fields)
    assert b"".join(written) == msgspec.json.encode(fields)
    assert body_buffers.total_bytes(written) == len(msgspec.json.encode(fields))


def test_what_is_long_is_not_copied():
    value = msgspec.Raw(b'"%b"' % (b"x" * body_buffers.LONG_BYTES))
    written = body_buffers.json_buffers(
        {"model": msgspec.Raw(b'"m"'), "prompt": value, "stream": msgspec.Raw(b"true")}
    )
    assert [type(piece) for piece in written] == [bytes, memoryview, bytes]
    assert written[1].obj is memoryview(value).obj
