"""Workers that are closed to later requests."""

from policies.admission.closed_workers import ClosedWorkers


def test_a_worker_that_a_crowding_request_waits_for_is_closed_to_crowding_requests_alone():
    closed = ClosedWorkers()
    closed.close(["a"], crowds=True)
    closed.close(["b"], crowds=False)
    open_to_others = [closed.allows(worker, crowds=False) for worker in "abc"]
    open_to_crowding = [closed.allows(worker, crowds=True) for worker in "abc"]
    assert (open_to_others, open_to_crowding) == ([True, False, True], [False, False, True])
