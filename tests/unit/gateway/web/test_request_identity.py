"""Request ids are new and grow; an API key is taken from headers that have one meaning."""

import re
import time

import pytest
from multidict import CIMultiDict

from gateway.domain.errors import Unauthenticated
from gateway.web.direct.request import DirectHeaders
from gateway.web.request_identity import new_request_id, presented_key


def test_ids_are_all_different_and_of_one_form():
    ids = [new_request_id() for _ in range(1000)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"req-[0-9a-f]{32}", one) for one in ids)


def test_the_id_of_a_later_request_is_larger(monkeypatch):
    ids = []
    for nanoseconds in (1, 10**6, 255 * 10**6, 10**18, 17 * 10**17, 10**20):
        monkeypatch.setattr(time, "time_ns", lambda at=nanoseconds: at)
        ids.append(new_request_id())
    assert ids == sorted(ids)
    assert {len(one) for one in ids} == {36}


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([("authorization", "Bearer one")], "one"),
        ([("authorization", "Bearer one"), ("Authorization", "Bearer one")], "one"),
        ([("x-api-key", "two"), ("authorization", "Bearer one")], "one"),
        ([("x-api-key", "two"), ("authorization", "Basic b25l")], None),
        ([("api-key", "three"), ("x-api-key", "two")], "two"),
        ([("api-key", "three")], "three"),
        ([], None),
    ],
)
def test_a_key_is_a_bearer_token_or_else_x_api_key_or_else_api_key(headers, key):
    assert presented_key(CIMultiDict(headers)) == key
    if len({name.lower() for name, _ in headers}) == len(headers):
        assert presented_key(DirectHeaders(headers)) == key


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
def test_a_key_header_sent_twice_with_different_values_is_refused_by_its_name(name):
    with pytest.raises(Unauthenticated, match=f"header {name} .* different values"):
        presented_key(CIMultiDict([(name, "Bearer one"), (name.title(), "Bearer two")]))
