"""Preemption: which batch requests give up their placement, and that none does in vain."""

from types import SimpleNamespace

import pytest

from gateway.dispatch.preemption import PreemptibleAttempt, Preemption
from gateway.fleet.loads import LoadShare
from gateway.fleet.worker import Worker
from gateway.queueing.shared.preemption_requests import Need
from radix_cache.match import WorkerId

WINDOW = 8192
W = WorkerId("w")


@pytest.fixture
def worker():
    return Worker(id=W, kind="test", adapter=None, models=frozenset({"m"}), models_fixed=True)


def sent(worker, tokens):
    return SimpleNamespace(
        prefill_worker=worker, load_share=LoadShare(worker.load, uncached_tokens=tokens, kv_tokens=tokens)
    )


def batch_work_at(worker, *sizes):
    preemption = Preemption()
    for tokens in sizes:
        preemption.add(PreemptibleAttempt(sent(worker, tokens)))
    return preemption


def test_the_last_that_was_sent_gives_way_where_that_is_enough(worker):
    among = batch_work_at(worker, 4000, 4000)
    assert among.can_make_room([Need(W, 4000, 8000, WINDOW)])
    assert not among.can_make_room([Need(W, 4000, 13_000, WINDOW)])


def test_nobody_gives_way_where_there_is_room(worker):
    assert not batch_work_at(worker, 2000).can_make_room([Need(W, 4000, 2000, WINDOW)])


def test_nobody_gives_way_where_what_is_left_would_be_too_much(worker):
    sent(worker, 8000)
    among = batch_work_at(worker, 2000)
    assert not among.can_make_room([Need(W, 7000, 10_000, WINDOW)])
