"""The store of finished requests: its bounds, and its answers."""

import msgspec
import pytest

from gateway.explorer.request_query import RequestQuery
from gateway.explorer.request_store import RequestStore
from gateway.telemetry.request_record import RequestRecord

FAST = RequestRecord(
    id="fast",
    surface="chat/completions",
    code="ok",
    status=200,
    tenant="acme",
    key_id="k1",
    model="m",
    worker="w0",
    by_shadow=False,
    attempts=1,
    stream=True,
    prompt_tokens=100,
    predicted_tokens=0,
    cached_tokens=0,
    output_tokens=10,
    spend=0,
    started_at=1_700_000_000.0,
    seconds=1.0,
    answered=True,
    dispatch_seconds=0.001,
    queue_seconds=None,
    ttft_seconds=0.2,
    worker_ttft_seconds=0.2,
    predicted_ttft_seconds=0.1,
    tpot_seconds=0.01,
    trace=None,
    steps=(),
    service_class="chat",
    ttft_target_seconds=0.5,
    first_token_seconds=0.2,
)


def request(number, **changes):
    """Return a request that began `number` milliseconds after the first one."""
    return msgspec.structs.replace(
        FAST, id=f"req-{number}", started_at=FAST.started_at + number / 1000, **changes
    )


@pytest.fixture
def store():
    return RequestStore("here/1", kept_max=10, slow_seconds=30.0)


def ids(found):
    return [details.id for details in found]


def test_every_failed_and_every_slow_request_is_kept(store):
    for number in range(10):
        store.observe(request(2 * number, code="worker_error", status=502))
        store.observe(request(2 * number + 1, first_token_seconds=0.6))
    assert len(store.search(RequestQuery(failed=True))) == 10
    assert len(store.search(RequestQuery(slow=True))) == 10
    assert ids(store.search(RequestQuery(slow=True, failed=True)))[:3] == ["req-19", "req-18", "req-17"]


def test_the_latest_requests_that_went_well_are_kept_however_close_they_were(store):
    for number in range(1000):
        store.observe(request(number))
    assert ids(store.search(RequestQuery(limit=200))) == [f"req-{number}" for number in range(999, 989, -1)]


def test_a_flood_of_refusals_pushes_out_no_failure(store):
    store.observe(request(0, code="worker_error", status=502))
    for number in range(1, 5000):
        store.observe(request(number, code="rate_limit_exceeded", status=429, worker=None))
    assert store.find("req-0").outcome == "failed"
    assert len(store) <= 20


def test_the_oldest_request_of_a_kind_makes_room(store):
    for number in range(25):
        store.observe(request(number, code="worker_error", status=502))
    assert len(store) == 10
    assert store.find("req-14") is None
    assert store.find("req-15") is not None
    assert ids(store.search(RequestQuery(limit=1))) == ["req-24"]


@pytest.mark.parametrize(
    ("changes", "slow"),
    [
        ({"first_token_seconds": 0.5}, False),
        ({"first_token_seconds": 0.51}, True),
        ({"first_token_seconds": None, "seconds": 31.0}, True),
        ({"first_token_seconds": 3.0, "ttft_target_seconds": 2.0, "service_class": "batch"}, False),
        ({"first_token_seconds": 3.0, "ttft_target_seconds": None}, False),
    ],
)
def test_a_request_is_slow_if_it_misses_its_target_or_takes_long(store, changes, slow):
    store.observe(request(0, **changes))
    assert bool(store.search(RequestQuery(slow=True))) == slow


def test_a_query_filters_by_tenant_model_worker_and_code(store):
    store.observe(request(0, code="worker_error", status=502))
    store.observe(request(1, code="no_worker", status=503, tenant="globex", model="n", worker=None))
    store.observe(request(2, code="client_closed", status=499, prefill_worker="w9"))
    assert ids(store.search(RequestQuery(tenant="globex"))) == ["req-1"]
    assert ids(store.search(RequestQuery(model="n"))) == ["req-1"]
    assert ids(store.search(RequestQuery(worker="w9"))) == ["req-2"]
    assert ids(store.search(RequestQuery(code="worker_error"))) == ["req-0"]
    assert ids(store.search(RequestQuery(failed=True))) == ["req-1", "req-0"]
    assert ids(store.search(RequestQuery(limit=2))) == ["req-2", "req-1"]
