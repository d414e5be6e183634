"""The circuit breaker: workers whose requests fail while their probes succeed. Scripted workers, real Valkey."""

import asyncio

import pytest

from tests.fakes.scripted_worker import ScriptedWorker


def health(running, worker="w0"):
    return running.here.gateway.fleet[worker].health


async def ask(running, text="hello", **more):
    async with running.chat(text, **more) as response:
        return response.status, await response.text()


@pytest.mark.parametrize("fault", [{"break_after": 0}, {"break_after": 1}], ids=["before", "within"])
async def test_a_worker_whose_answers_break_is_left_alone_though_its_probes_are_fine(gateway, fault):
    async with ScriptedWorker() as ill, ScriptedWorker() as well:
        async with gateway(ill, well, **{"routing.policy": "round_robin"}) as running:
            ill.then(**fault)
            async with asyncio.timeout(60):
                while not health(running).circuit_open:
                    await ask(running, stream=True)
            seen = len(ill.seen)
            for _ in range(4):
                assert (await ask(running, stream=True))[0] == 200
            assert len(ill.seen) == seen
            assert running.here.gateway.fleet["w0"].openings == 1


async def test_a_worker_that_is_well_again_is_tried_with_one_request_and_taken_back(gateway):
    async with ScriptedWorker() as ill, ScriptedWorker() as well:
        async with gateway(ill, well, **{"routing.policy": "round_robin"}) as running:
            ill.then(break_after=0)
            async with asyncio.timeout(60):
                while not health(running).circuit_open:
                    await ask(running)
            ill.then(break_after=None)
            await running.until(lambda: health(running).on_trial, 60)
            async with asyncio.timeout(60):
                while health(running).state.value != "up":
                    assert (await ask(running))[0] == 200
            assert ill.seen[-1].ended == "finished"


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429, 503])
async def test_what_clients_do_wrong_and_what_is_busy_opens_no_circuit(gateway, status):
    async with ScriptedWorker() as only, gateway(only) as running:
        only.then(status=status)
        for _ in range(12):
            await ask(running)
        assert (health(running).state.value, health(running).strain) == ("up", 0.0)


async def test_clients_that_leave_open_no_circuit(gateway):
    async with ScriptedWorker() as only, gateway(only) as running:
        only.then(gap=5.0)
        for _ in range(8):
            async with running.chat("hello", stream=True) as response:
                await response.content.readany()
        await running.until(lambda: running.idle)
        assert (health(running).state.value, health(running).strain) == ("up", 0.0)


async def test_the_only_worker_gets_requests_also_with_its_circuit_open(gateway):
    async with ScriptedWorker() as only, gateway(only) as running:
        only.then(break_after=1)
        async with asyncio.timeout(60):
            while not health(running).circuit_open:
                await ask(running, stream=True)
        only.then(break_after=None)
        assert (await ask(running))[0] == 200
