"""One request on a prefill worker and a decode worker: each one's share of the load, and the call to both."""

import pytest

from gateway.dispatch.prefill_decode_pairs import PairLoadShare, pair
from gateway.fleet.loads import WorkerLoad
from tests.fakes.clock import FakeClock
from tests.fakes.dispatch_stage import DispatchStage, until_idle
from workers.adapter import WorkerCall, WorkerReport
from workers.worker import Role


@pytest.fixture
def loads():
    clock = FakeClock()
    return WorkerLoad(clock=clock), WorkerLoad(clock=clock)


def share_of(loads):
    return PairLoadShare(*loads, uncached_tokens=512, prompt_tokens=640, kv_tokens=650)


def figures(load):
    return load.tokens_queued, load.streams, load.kv_tokens


def test_both_workers_count_the_request_from_its_dispatch_on(loads):
    share_of(loads)
    assert [figures(load) for load in loads] == [(512, 1, 640), (0, 1, 650)]


def test_the_first_token_frees_the_prefill_worker_alone(loads):
    share_of(loads).note_first_token()
    assert [figures(load) for load in loads] == [(0, 0, 0), (0, 1, 650)]


def test_the_end_frees_both_workers(loads):
    share_of(loads).end()
    assert [figures(load) for load in loads] == [(0, 0, 0), (0, 0, 0)]


def test_ending_twice_frees_once(loads):
    first, other = share_of(loads), share_of(loads)
    first.end()
    first.end()
    assert [figures(load) for load in loads] == [(512, 1, 640), (0, 1, 650)]
    other.end()


def test_the_window_that_a_pair_takes_is_the_prefill_workers(loads):
    share = share_of(loads)
    assert share.tokens_computing == 512
    share.note_first_token()
    assert share.tokens_computing == 0


async def test_the_call_goes_to_both_workers_with_the_prefill_workers_address():
    stage = DispatchStage("x")
    prefill = stage.join("p", kind="sglang", role=Role.PREFILL)
    decode = stage.join("d", kind="sglang", role=Role.DECODE)
    prefill.report = WorkerReport(bootstrap_address=("10.0.0.7", 9000))
    call_target = pair(prefill, decode, stage.context(), None)
    call = WorkerCall(id="r", path="v1/chat/completions", fields={}, model="m", stream=True)
    async with call_target.stream(call) as answer:
        assert answer.status == 200
        await until_idle()
    sent = [adapter.calls[0].fields for adapter in (stage.adapters["p"], stage.adapters["d"])]
    assert [bytes(fields["bootstrap_host"]) for fields in sent] == [b'"10.0.0.7"'] * 2
    assert [bytes(fields["bootstrap_port"]) for fields in sent] == [b"9000"] * 2
