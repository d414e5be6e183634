"""Who has to give way, and that nobody does where it would not help."""

from types import SimpleNamespace

import pytest

from gateway.dispatch.fleet_worker import Worker
from gateway.dispatch.loads import Place
from gateway.dispatch.preemption import Attempt, Preemptible
from gateway.queue.favours import Need
from radix_cache.match import WorkerId
from tests.fakes.clock import FakeClock
from workers.adapter import WorkerReport
from workers.worker import Speed

WINDOW = 8192
W = WorkerId("w")


@pytest.fixture
def worker():
    made = Worker(id=W, kind="test", adapter=None, models=frozenset({"m"}), models_fixed=True)
    made.load.clock, made.learnt.speed = FakeClock(), Speed(ms_per_token=0.1)
    made.report = WorkerReport(models=("m",), kv_tokens_max=1_000_000)
    return made


def sent(worker, tokens):
    return SimpleNamespace(
        computes=worker, place=Place(worker.load, uncached_tokens=tokens, kv_tokens=tokens)
    )


def batch_work_at(worker, *sizes):
    among = Preemptible()
    for tokens in sizes:
        among.put(Attempt(), sent(worker, tokens))
    return among


def test_the_last_that_was_sent_gives_way_where_that_is_enough(worker):
    among = batch_work_at(worker, 4000, 4000)
    assert among.can_make_room([Need(W, 4000, 8000)], WINDOW)
    assert not among.can_make_room([Need(W, 4000, 13_000)], WINDOW)


def test_nobody_gives_way_where_there_is_room(worker):
    among = batch_work_at(worker, 4000, 4000)
    worker.load.clock.advance(60)
    assert worker.tokens_ahead == 1600
    assert not among.can_make_room([Need(W, 4000, 1600)], WINDOW)


def test_nobody_gives_way_where_what_is_left_would_be_too_much(worker):
    sent(worker, 8000)
    among = batch_work_at(worker, 2000)
    worker.load.clock.advance(60)
    assert worker.tokens_ahead == 2000
    # Who leaves begins the count of what is computed anew: 8000 are ahead then.
    assert not among.can_make_room([Need(W, 7000, 2000)], WINDOW)
