"""Counters by worker while workers come and go: in the metrics and in the console's totals."""

import msgspec

from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.telemetry.metrics import RequestMetrics
from gateway.telemetry.overview import Overview
from gateway.wiring.counters_follow_fleet import CountersFollowFleet
from radix_cache.match import WorkerId
from tests.fakes.clock import FakeClock
from tests.fakes.running_account import answered


class Closable:
    """An adapter that is never called, but to be closed."""

    def close(self):
        pass


def worker(name):
    return Worker(id=WorkerId(name), kind="test", adapter=Closable(), models=frozenset(), models_fixed=False)


def test_counters_of_workers_that_have_left_do_not_pile_up():
    clock = FakeClock()
    fleet, metrics, overview = Fleet([worker("w0")]), RequestMetrics(), Overview(clock)
    fleet.subscribe(CountersFollowFleet(fleet, metrics.keep_workers, overview.keep_workers))
    record = answered(clock).record()

    def count(**more):
        for observe in (metrics.observe, overview.observe):
            observe(msgspec.structs.replace(record, **more))

    for number in range(100):
        pod = f"pod{number}"
        fleet.add(worker(pod))
        count(worker="w0")
        count(worker="w0", prefill_worker=pod)
        fleet.remove(WorkerId(pod))
        count(worker=pod)  # An answer that ends after its worker has left.

    # The last one that has left goes with the next.
    assert set(metrics.workers) == set(overview.workers) == {"w0", "pod99"}
    assert metrics.workers["w0"].requests == overview.workers["w0"].total.requests == 200
    assert overview.all.total.requests == 300
