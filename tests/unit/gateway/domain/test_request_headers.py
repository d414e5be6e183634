"""Request headers with one meaning: the encoding of a body."""

import pytest
from multidict import CIMultiDict

from gateway.domain.errors import UnsupportedEncoding
from gateway.domain.request_headers import content_encoding, require_identity


@pytest.mark.parametrize(
    ("headers", "encoding"),
    [
        ({}, "identity"),
        ({"Content-Encoding": ""}, "identity"),
        ({"Content-Encoding": " "}, "identity"),
        ({"Content-Encoding": "Identity"}, "identity"),
        ({"Content-Encoding": " GZIP "}, "gzip"),
    ],
)
def test_a_body_without_a_named_encoding_is_sent_as_it_is(headers, encoding):
    assert content_encoding(CIMultiDict(headers)) == encoding


def test_an_encoded_body_is_refused_where_none_is_read():
    require_identity(CIMultiDict({"Content-Encoding": ""}))
    with pytest.raises(UnsupportedEncoding, match="'gzip'"):
        require_identity(CIMultiDict({"Content-Encoding": "gzip"}))
