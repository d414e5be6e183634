"""Bodies whose text is no UTF-8."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.web.openai import body_fields


@given(
    text=st.text(min_size=1),
    at=st.integers(0, 50),
    wrong=st.sampled_from([b"", b"\xff", b"\xc3", b"\xed\xa0\x80"]),
)
def test_what_is_no_text_is_seen_wherever_it_is_cut(text, at, wrong):
    body = text.encode()[:at] + wrong + text.encode()[at:]
    try:
        body.decode()
        right = True
    except UnicodeDecodeError:
        right = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_fields, "UTF8_SLICE_BYTES", 1)
        if right:
            body_fields.check_utf8(body)
        else:
            with pytest.raises(UnicodeDecodeError):
                body_fields.check_utf8(body)
