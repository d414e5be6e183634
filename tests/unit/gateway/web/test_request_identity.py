"""Request ids: each is new, and later requests have larger ones."""

import re
import time

from gateway.web.request_identity import new_request_id


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
