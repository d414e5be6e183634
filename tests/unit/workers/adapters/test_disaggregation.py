"""One request on two scripted workers: the exact fields that each kind gets, and whose failure ends what."""

import asyncio
import json

import msgspec
import pytest

from radix_cache.match import WorkerId
from tests.fakes.scripted_worker import ScriptedWorker
from workers.adapter import FailureKind, WorkerCall, WorkerFailed, WorkerTarget
from workers.adapters import disaggregation
from workers.adapters.disaggregation import DisaggregatedCall, PairMember
from workers.adapters.registry import BUILT_IN

pytestmark = pytest.mark.any_loop

SOON = 2.0
KINDS = ["embedded", "sglang", "vllm"]
PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[7, 8, 9]],
    "remote_engine_id": "e-1",
    "remote_host": "10.0.0.7",
    "remote_port": 5600,
}


class Halves:
    """Two workers of a kind."""

    def __init__(self, kind, prefill, decode):
        self.kind, self.prefill, self.decode = kind, prefill, decode
        self.adapters = []

    def pair(self, **more):
        def member(name, worker, **where):
            adapter = BUILT_IN[self.kind](WorkerTarget(id=WorkerId(name), url=worker.url))
            self.adapters.append(adapter)
            return PairMember(id=WorkerId(name), adapter=adapter, **where)

        ranks = more.pop("ranks", 1)
        prefill = member("p", self.prefill, host="10.0.0.1", port=more.pop("port", 9001), ranks=ranks)
        return DisaggregatedCall(self.kind, prefill, member("d", self.decode), **more)

    async def bodies(self):
        """What both were sent."""
        async with asyncio.timeout(SOON):
            while not (self.prefill.seen and self.decode.seen):
                await asyncio.sleep(0.001)
        return self.prefill.seen[0].body, self.decode.seen[0].body

    async def ended(self):
        """How both ended."""
        async with asyncio.timeout(SOON):
            for worker in (self.prefill, self.decode):
                for seen in worker.seen:
                    await seen.done.wait()
        return [[seen.ended for seen in worker.seen] for worker in (self.prefill, self.decode)]


@pytest.fixture
async def halves(request):
    kind = getattr(request, "param", "sglang")
    async with ScriptedWorker() as prefill, ScriptedWorker() as decode:
        if kind == "vllm":
            prefill.then(more={"kv_transfer_params": PARAMS})
        made = Halves(kind, prefill, decode)
        yield made
        for adapter in made.adapters:
            adapter.close()


all_kinds = pytest.mark.parametrize("halves", KINDS, indirect=True)
bootstrapped = pytest.mark.parametrize("halves", ["embedded", "sglang"], indirect=True)
transferred = pytest.mark.parametrize("halves", ["vllm"], indirect=True)


def call(**fields):
    asked = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "top_k": 7, **fields}
    return WorkerCall(
        id="req-1",
        path="v1/chat/completions",
        fields={name: msgspec.Raw(json.dumps(value).encode()) for name, value in asked.items()},
        model="m",
        stream=asked["stream"],
        cache_salt="s",
        first_byte_seconds_max=30.0,
    )


async def read(pair, asked=None):
    async with pair.stream(asked or call()) as answer:
        return answer.status, b"".join([chunk async for chunk in answer.chunks()])


@all_kinds
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_the_answer_is_the_decode_workers(halves, stream):
    halves.decode.then(tokens=3)
    halves.prefill.then(tokens=1)
    status, body = await read(halves.pair(), call(stream=stream))
    assert status == 200
    assert b"w2" in body


@bootstrapped
async def test_both_get_the_same_body_with_a_meeting_place(halves):
    await read(halves.pair(draw=lambda below: below - 5))
    prefill, decode = await halves.bodies()
    assert prefill == decode
    running = {"continuous_usage_stats": True} if halves.kind == "sglang" else {}
    assert prefill == {
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "top_k": 7,
        "model": "m",
        "stream_options": {"include_usage": True, **running},
        "rid": "req-1",
        "cache_salt": "s",
        "bootstrap_host": "10.0.0.1",
        "bootstrap_port": 9001,
        "bootstrap_room": 2**63 - 5,
    }


@bootstrapped
async def test_a_port_that_is_not_known_is_the_engines_own(halves):
    await read(halves.pair(port=None))
    assert (await halves.bodies())[0]["bootstrap_port"] == 8998


@bootstrapped
async def test_several_answers_meet_in_rooms_of_their_own(halves):
    await read(halves.pair(answers=3), call(n=3))
    prefill, decode = await halves.bodies()
    assert prefill == decode
    assert prefill["bootstrap_host"] == ["10.0.0.1"] * 3
    assert prefill["bootstrap_port"] == [9001] * 3
    assert len(set(prefill["bootstrap_room"])) == 3
    assert all(0 <= room < 2**63 for room in prefill["bootstrap_room"])


@bootstrapped
async def test_the_turns_of_a_session_meet_the_same_rank(halves):
    for _ in range(4):
        await read(halves.pair(ranks=8, session=8 * 11 + 5))
    rooms = [seen.body["bootstrap_room"] for seen in halves.prefill.seen]
    assert [room % 8 for room in rooms] == [5] * 4
    assert len(set(rooms)) == 4


@bootstrapped
async def test_both_are_called_at_once(halves):
    until = asyncio.Event()
    halves.decode.then(until=until)
    halves.prefill.then(until=until)
    asked = asyncio.create_task(read(halves.pair()))
    await halves.bodies()
    until.set()
    assert (await asked)[0] == 200


@transferred
async def test_vllm_prefills_one_token_and_its_transfer_parameters_are_passed_on(halves):
    asked = call(max_completion_tokens=50, max_tokens=60, n=1, min_tokens=4, logprobs=True, top_logprobs=2)
    await read(halves.pair(), asked)
    prefill, decode = await halves.bodies()
    assert prefill == {
        "messages": [{"role": "user", "content": "hi"}],
        "stream": False,
        "top_k": 7,
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "model": "m",
        "request_id": "req-1",
        "cache_salt": "s",
        "kv_transfer_params": {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        },
    }
    assert decode == {
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "top_k": 7,
        "max_completion_tokens": 50,
        "max_tokens": 60,
        "n": 1,
        "min_tokens": 4,
        "logprobs": True,
        "top_logprobs": 2,
        "model": "m",
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "request_id": "req-1",
        "cache_salt": "s",
        "kv_transfer_params": PARAMS,
    }
    assert {worker.seen[0].headers["x-request-id"] for worker in (halves.prefill, halves.decode)} == {"req-1"}


@transferred
async def test_the_cached_tokens_of_vllm_are_those_that_its_prefill_worker_reports(halves):
    halves.prefill.then(cached_tokens=6)
    halves.decode.then(cached_tokens=10)
    pair = halves.pair()
    await read(pair)
    assert pair.cached(10) == 6


@bootstrapped
async def test_the_cached_tokens_of_sglang_are_those_that_its_decode_worker_reports(halves):
    assert halves.pair().cached(10) == 10


# Either worker fails, or the client leaves.


@all_kinds
async def test_a_prefill_worker_that_fails_ends_the_decode_leg_at_once(halves):
    halves.prefill.then(break_after=0)
    halves.decode.then(silent=True)
    with pytest.raises(WorkerFailed) as raised:
        await asyncio.wait_for(read(halves.pair()), SOON)
    assert raised.value.worker == "p"
    assert all(ended == "aborted" for ended in (await halves.ended())[1])


@all_kinds
async def test_a_busy_prefill_worker_is_reported_as_busy(halves):
    halves.prefill.then(status=503, headers={"retry-after": "7"})
    halves.decode.then(silent=True)
    with pytest.raises(WorkerFailed) as raised:
        await asyncio.wait_for(read(halves.pair()), SOON)
    assert (raised.value.worker, raised.value.failure) == ("p", FailureKind.BUSY)
    assert raised.value.retry_after_seconds == 7


@bootstrapped
async def test_a_prefill_that_breaks_off_before_the_first_byte_ends_the_decode_leg(halves):
    halves.prefill.then(break_after=1)
    halves.decode.then(silent=True)
    with pytest.raises(WorkerFailed, match="broke off") as raised:
        await asyncio.wait_for(read(halves.pair()), SOON)
    assert raised.value.worker == "p"


@all_kinds
async def test_a_decode_worker_that_fails_ends_the_prefill_leg_at_once(halves):
    halves.decode.then(break_after=0)
    if halves.kind != "vllm":
        halves.prefill.then(silent=True)
    with pytest.raises(WorkerFailed) as raised:
        await asyncio.wait_for(read(halves.pair()), SOON)
    assert raised.value.worker == "d"
    ended = (await halves.ended())[0]
    assert ended == (["finished"] if halves.kind == "vllm" else ["aborted"])


@all_kinds
async def test_a_refusal_of_the_prefill_worker_is_the_answer(halves):
    halves.prefill.then(status=400, body={"error": {"message": "too long"}})
    halves.decode.then(silent=True)
    status, body = await asyncio.wait_for(read(halves.pair()), SOON)
    assert (status, json.loads(body)["error"]["message"]) == (400, "too long")
    assert all(ended == "aborted" for ended in (await halves.ended())[1])


@bootstrapped
async def test_a_refusal_of_the_decode_worker_is_the_answer_and_ends_the_prefill(halves):
    halves.decode.then(status=400, body={"error": {"message": "no"}})
    halves.prefill.then(silent=True)
    status, _ = await asyncio.wait_for(read(halves.pair()), SOON)
    assert status == 400
    assert (await halves.ended())[0] == ["aborted"]


@bootstrapped
async def test_a_prompt_that_does_not_come_in_time_is_the_prefill_workers_failure(halves):
    halves.prefill.then(silent=True)
    halves.decode.then(silent=True)
    asked = msgspec.structs.replace(call(), first_byte_seconds_max=0.2)
    with pytest.raises(WorkerFailed) as raised:
        await read(halves.pair(), asked)
    assert raised.value.timed_out
    assert await halves.ended() == [["aborted"], ["aborted"]]


@all_kinds
@pytest.mark.parametrize("first_byte", [False, True], ids=["before-the-first-byte", "in-the-answer"])
async def test_a_client_that_leaves_ends_both(halves, first_byte):
    if halves.kind != "vllm":
        halves.prefill.then(silent=True)
    halves.decode.then(silent=not first_byte, tokens=1000, gap=0.01)
    reading = asyncio.create_task(read(halves.pair()))
    _, _ = await halves.bodies()
    if first_byte:
        async with asyncio.timeout(SOON):
            while not halves.decode.seen[0].frames:
                await asyncio.sleep(0.001)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    prefilled = "finished" if halves.kind == "vllm" else "aborted"
    assert await halves.ended() == [[prefilled], ["aborted"]]


@bootstrapped
async def test_a_prefill_leg_that_is_slower_than_the_answer_is_not_hung_up_on(halves):
    halves.prefill.then(tokens=2, gap=0.2)
    await read(halves.pair())
    assert (await halves.ended())[0] == ["finished"]


@bootstrapped
async def test_a_prefill_leg_that_never_ends_is_hung_up_on_after_a_while(halves, monkeypatch):
    monkeypatch.setattr(disaggregation, "LINGER_SECONDS", 0.05)
    halves.prefill.then(tokens=1000, gap=0.05)
    await read(halves.pair())
    assert (await halves.ended())[0] == ["aborted"]


@bootstrapped
async def test_a_prefill_leg_that_fails_after_the_first_byte_does_not_cut_the_answer(halves):
    halves.prefill.then(first_after=0.05, break_after=0)
    halves.decode.then(tokens=8, gap=0.03)
    status, body = await read(halves.pair())
    assert status == 200
    assert body.endswith(b"data: [DONE]\n\n")
