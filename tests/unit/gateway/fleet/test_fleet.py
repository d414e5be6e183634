"""The fleet: probes and a worker's health, log lines, and when its cache counts as lost."""

import asyncio
import logging

import pytest

from gateway.domain.request import Surface
from gateway.fleet import fleet as module
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.fleet.worker_health import FAILURES_MAX
from radix_cache.match import WorkerId
from tests.fakes.fleet_listener import NotingListener
from workers.adapter import FailureKind, WorkerFailed, WorkerReport
from workers.worker import Health


class Adapter:
    """Says of itself what it is told to say; an exception is raised."""

    isolates = True
    streams_whole = True

    def __init__(self, instance=None):
        self.says = WorkerReport(models=("m",), instance_id=instance)

    async def probe(self):
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def abandon(self):
        pass

    def close(self):
        pass


def worker(name, adapter):
    return Worker(id=WorkerId(name), kind="test", adapter=adapter, models=frozenset(), models_fixed=False)


def fleet_of(*workers, emptied=None):
    fleet, listener = Fleet(workers), NotingListener()
    listener.lost = emptied if emptied is not None else []
    fleet.subscribe(listener)
    return fleet


async def probe_until_down(fleet, one, error):
    one.adapter.says = error
    for _ in range(FAILURES_MAX):
        await fleet.probe(one)
    assert one.health.state is Health.DOWN


def said(caplog):
    return [record.getMessage() for record in caplog.records]


async def test_a_worker_that_reports_its_instance_keeps_its_cache_while_it_is_the_same():
    emptied, one = [], worker("a", Adapter(instance="first"))
    fleet = fleet_of(one, emptied=emptied)
    await fleet.probe(one)
    report = one.report
    await probe_until_down(fleet, one, WorkerFailed("away"))
    one.adapter.says = report
    await fleet.probe(one)
    assert (one.health.state, emptied) == (Health.UP, [])


async def test_a_worker_that_comes_back_as_another_instance_is_reported_as_that():
    """The index learns from the report that the worker has a new cache."""
    emptied, one = [], worker("a", Adapter(instance="first"))
    fleet, listener = Fleet([one]), NotingListener()
    listener.lost = emptied
    fleet.subscribe(listener)
    await fleet.probe(one)
    await probe_until_down(fleet, one, WorkerFailed("away"))
    one.adapter.says = WorkerReport(models=("m",), instance_id="second")
    await fleet.probe(one)
    assert (emptied, [report.instance_id for report in listener.reports]) == ([], ["first", "second"])


async def test_a_worker_that_reports_no_instance_has_lost_its_cache_when_it_goes_down():
    emptied, one = [], worker("a", Adapter())
    fleet = fleet_of(one, emptied=emptied)
    await fleet.probe(one)
    await probe_until_down(fleet, one, WorkerFailed("away"))
    assert emptied == ["a"]


async def test_why_a_worker_changes_is_logged_in_one_line_and_once(caplog):
    caplog.set_level(logging.INFO)
    one = worker("a", Adapter())
    fleet = fleet_of(one)
    await fleet.probe(one)
    caplog.clear()
    await probe_until_down(fleet, one, WorkerFailed("connection refused"))
    assert said(caplog) == [
        "worker a: suspect, was up: connection refused",
        "worker a: down, was suspect: connection refused",
    ]
    for _ in range(3):
        await fleet.probe(one)
    assert len(caplog.records) == 2
    one.adapter.says = WorkerFailed("status 401 from /v1/models")
    for _ in range(3):
        await fleet.probe(one)
    assert said(caplog)[2:] == ["worker a is still down: status 401 from /v1/models"]


async def test_a_probe_that_fails_in_its_own_way_is_a_failed_probe_and_logged_once(caplog):
    one = worker("a", Adapter())
    fleet = fleet_of(one)
    await probe_until_down(fleet, one, ZeroDivisionError("a bug"))
    unexpected = [record for record in caplog.records if record.exc_info]
    assert len(unexpected) == 1
    assert "worker a" in unexpected[0].getMessage()


async def test_a_report_that_cannot_be_used_is_a_failed_probe():
    class Failing(NotingListener):
        def reported(self, worker):
            raise OverflowError("too many tokens")

    one = worker("a", Adapter())
    fleet = Fleet([one])
    fleet.subscribe(Failing())
    for _ in range(FAILURES_MAX):
        await fleet.probe(one)
    assert one.health.state is Health.DOWN


async def test_one_workers_nonsense_does_not_stop_the_probes_of_the_others(monkeypatch):
    monkeypatch.setattr(module, "PROBE_INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr(module, "PROBE_INTERVAL_SECONDS_NOT_UP", 0.001)
    good, bad = worker("good", Adapter()), worker("bad", Adapter())
    good.adapter.says = WorkerFailed("not yet")
    bad.adapter.says = UnicodeError("label empty or too long")
    fleet = fleet_of(good, bad)
    probing = asyncio.create_task(fleet.run())
    async with asyncio.timeout(60):
        while bad.health.state is not Health.DOWN:
            await asyncio.sleep(0)
        good.adapter.says = WorkerReport(models=("m",))
        while good.health.state is not Health.UP:
            await asyncio.sleep(0)
    assert not probing.done()
    probing.cancel()


@pytest.mark.parametrize(
    ("failure", "health", "failures"),
    [
        (FailureKind.UNHEALTHY, Health.SUSPECT, 1),
        (FailureKind.SERVER_ERROR, Health.UP, 1),
        (FailureKind.REFUSED, Health.UP, 1),
        (FailureKind.BUSY, Health.UP, 0),
    ],
)
async def test_only_what_is_the_workers_fault_counts_against_it(failure, health, failures):
    one = worker("a", Adapter())
    fleet = fleet_of(one)
    await fleet.probe(one)
    fleet.worker_failed(one, WorkerFailed("x", failure=failure))
    assert (one.health.state, one.failures) == (health, failures)


async def test_a_failure_that_was_the_workers_after_all_counts():
    one = worker("a", Adapter())
    fleet = fleet_of(one)
    await fleet.probe(one)
    fleet.blame(one, WorkerFailed("status 500", failure=FailureKind.SERVER_ERROR))
    assert one.health.state is Health.SUSPECT


async def test_a_worker_that_sleeps_gets_no_request_and_has_lost_its_cache():
    emptied, one = [], worker("w", Adapter())
    fleet = fleet_of(one, emptied=emptied)
    await fleet.probe(one)
    assert fleet.serving("m") == [one]
    one.adapter.says = WorkerReport(models=("m",), asleep=True)
    await fleet.probe(one)
    assert (fleet.serving("m"), emptied) == ([], ["w"])
    one.adapter.says = WorkerReport(models=("m",))
    await fleet.probe(one)
    assert fleet.serving("m") == [one]


async def test_the_shape_of_answers_is_dropped_when_a_worker_restarts_or_is_down():
    one = worker("w", Adapter(instance="first"))
    fleet = fleet_of(one)
    whole = b'{"choices": [{"message": {}}]}'
    await fleet.probe(one)
    assert one.response_shapes.of(Surface.CHAT) is None
    one.response_shapes.learn(Surface.CHAT, whole)
    await fleet.probe(one)
    assert one.response_shapes.of(Surface.CHAT) is not None
    one.adapter.says = WorkerReport(models=("m",), instance_id="second")
    await fleet.probe(one)
    assert one.response_shapes.of(Surface.CHAT) is None
    one.response_shapes.learn(Surface.CHAT, whole)
    await probe_until_down(fleet, one, WorkerFailed("gone"))
    assert one.response_shapes.of(Surface.CHAT) is None


async def test_models_that_were_known_once_stay_known_whatever_worker_is_down():
    known, late = worker("known", Adapter()), worker("late", Adapter())
    fleet = fleet_of(known)
    assert not fleet.complete
    await fleet.probe(known)
    assert fleet.complete
    fleet.add(late)
    assert not fleet.complete, "it may serve any model"
    await probe_until_down(fleet, late, WorkerFailed("not connected"))
    assert fleet.complete
    await probe_until_down(fleet, known, WorkerFailed("not connected"))
    assert fleet.complete


async def test_a_worker_that_has_not_answered_yet_is_awaited_at_the_start():
    known, missing = worker("known", Adapter()), worker("missing", Adapter())
    fleet = fleet_of(known, missing)
    await fleet.probe(known)
    await probe_until_down(fleet, missing, WorkerFailed("not connected"))
    assert not fleet.complete
