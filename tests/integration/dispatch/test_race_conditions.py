"""Race conditions: clients that disconnect, workers that vanish, and preemptions, at the worst moment."""

import asyncio
import json
from contextlib import asynccontextmanager

from gateway import pipeline
from gateway.dispatch.preemption import PreemptibleAttempt
from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.queueing.test_service_classes import WINDOW, ask, left, metric
from tests.integration.queueing.test_shared_turns import nothing_is_left, queue_of, together


async def test_a_client_that_leaves_right_after_its_turn_came_leaves_its_place_too(gateway, monkeypatch):
    came = asyncio.Event()

    @asynccontextmanager
    async def slow_to_end(*_):
        yield
        came.set()
        await asyncio.Event().wait()

    async with ScriptedWorker() as worker, gateway(worker) as running:
        with monkeypatch.context() as patched:
            patched.setattr(pipeline, "send_comments", slow_to_end)
            call = ask(running, stream=True, headers={"x-radixgate-keep-alive": "5"})
            await came.wait()
            await left(call)
            await running.until(lambda: running.idle)
        assert worker.seen == []
        assert (await ask(running)).status == 200


async def test_a_turn_at_a_worker_that_is_gone_by_then_is_requested_again(gateway):
    async with ScriptedWorker() as first, ScriptedWorker() as second:
        workers = json.dumps(
            [{"id": f"w{at}", "kind": "sglang", "url": one.url} for at, one in enumerate([first, second])]
        )
        async with gateway(workers=workers) as one, gateway(workers=workers) as two:
            await together(one, two)
            store, fleet, gone = queue_of(one)._store, one.here.gateway.fleet, []
            admit = store.admit

            async def late(*asked):
                told = await admit(*asked)
                if not gone:
                    gone.append(told.worker)
                    fleet.remove(told.worker)
                return told

            store.admit = late
            assert (await ask(one)).status == 200
            assert len(gone) == 1
            seen = {"w0": first.seen, "w1": second.seen}
            assert len(seen.pop(gone[0])) == 0
            await nothing_is_left(one, two)


async def test_a_request_to_be_preempted_as_its_first_byte_comes_keeps_its_placement(gateway, monkeypatch):
    first_byte = PreemptibleAttempt.first_byte

    async def cut_off_as_it_comes(self, opening):
        async def opened():
            answer = await opening
            self.cut_off()
            return answer

        return await first_byte(self, opened())

    monkeypatch.setattr(PreemptibleAttempt, "first_byte", cut_off_as_it_comes)
    preempts = {**WINDOW, "queueing.preempts": "true"}
    async with ScriptedWorker() as worker, gateway(worker, **preempts) as running:
        worker.then(gap=0.05)
        answer = await ask(running, stream=True, headers={"x-radixgate-class": "batch"})
        text = await answer.read()
        assert (answer.status, text.count(b"[DONE]")) == (200, 1)
        await running.until(lambda: running.idle)
        assert await metric(running, "radixgate_preemptions_total 0.0")
    assert [seen.ended for seen in worker.seen] == ["finished"]
