"""The shadow policy in a whole gateway: scripted workers, real Valkey."""

import json

import pytest

from policies.routing.round_robin import RoundRobin
from tests.fakes.scripted_worker import ScriptedWorker

REQUESTS = 12


async def metrics(running):
    """Every sample of the gateway's metrics, by its line's name and labels."""
    token = running.here.gateway.settings.admin.token
    headers = {} if token is None else {"Authorization": f"Bearer {token.reveal()}"}
    async with running.http.get(f"{running.admin}/metrics", headers=headers) as response:
        lines = (await response.text()).splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


async def streams(running, count=REQUESTS):
    for number in range(count):
        async with running.chat(f"question {number}", stream=True) as response:
            assert response.status == 200
            await response.read()


@pytest.mark.parametrize("share", [0, 1])
async def test_a_shadow_is_compared_with_every_request_and_decides_its_share(gateway, share):
    second = json.dumps({"policy": "round_robin", "share": share})
    async with ScriptedWorker() as one, ScriptedWorker() as two:
        settings = {"routing.policy": "least_work", "routing.shadow": second}
        async with gateway(one, two, **settings) as running:
            await streams(running)
            seen = await metrics(running)
        served = [len(worker.seen) for worker in (one, two)]
    assert seen["radixgate_shadow_compared_total"] == REQUESTS
    assert 0 <= seen["radixgate_shadow_differed_total"] <= REQUESTS
    decider = "shadow" if share else "policy"
    assert seen[f'radixgate_routing_requests_total{{by="{decider}"}}'] == REQUESTS
    if share:
        assert served == [REQUESTS // 2, REQUESTS // 2]


@pytest.mark.parametrize("share", [0, 1])
async def test_a_shadow_that_fails_fails_no_request(gateway, share, monkeypatch):
    monkeypatch.setattr(RoundRobin, "rank", lambda *_: 1 / 0)
    second = json.dumps({"policy": "round_robin", "share": share})
    async with ScriptedWorker() as worker:
        async with gateway(worker, **{"routing.shadow": second}) as running:
            await streams(running, 3)
            seen = await metrics(running)
    assert len(worker.seen) == 3
    assert seen["radixgate_shadow_failures_total"] >= 3
    assert seen["radixgate_shadow_compared_total"] == 0


async def test_predicted_and_measured_times_to_the_first_token_are_metrics(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        await streams(running)
        seen = await metrics(running)
        fit = running.here.gateway.fleet["w0"].learnt.fit
    assert fit.samples == REQUESTS
    assert seen['radixgate_worker_ttft_seconds_total{worker="w0"}'] > 0
    assert seen['radixgate_worker_predicted_ttft_seconds_total{worker="w0"}'] > 0
    assert seen['radixgate_worker_ttft_error_seconds_total{worker="w0"}'] > 0


async def test_a_stream_that_its_client_left_teaches_its_first_token_too(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(gap=0.2)
        async with running.chat("hello", stream=True) as response:
            await response.content.readany()
        await running.until(lambda: running.here.gateway.fleet["w0"].learnt.fit.samples == 1)


async def test_a_shadow_that_decides_already_is_refused(gateway):
    settings = {"routing.policy": "round_robin", "routing.shadow": json.dumps({"policy": "round_robin"})}
    async with ScriptedWorker() as worker:
        with pytest.raises(Exception, match=r"is the same policy as routing\.policy"):
            async with gateway(worker, **settings):
                pass
