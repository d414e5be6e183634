"""The policy in force and the shadow policy, compared over all gateways."""

from tests.fakes.scripted_worker import ScriptedWorker

SHADOW = {"routing.policy": "round_robin", "routing.shadow.policy": "cost"}


async def compared(running):
    async with running.http.get(f"{running.admin}/admin/v1/policies") as response:
        assert response.status == 200
        return await response.json()


async def asked(running, count=1):
    for number in range(count):
        async with running.chat(f"hello {number}") as response:
            await response.read()


async def test_without_a_shadow_policy_only_the_policy_in_force_is_named(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        found = await compared(running)
        assert (found["policy"], found["shadow_policy"], found["shadow"]) == ("cost", None, None)


async def test_the_choices_of_two_gateways_are_added_up(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        async with gateway(one, other, **SHADOW) as first, gateway(one, other, **SHADOW) as second:
            queue = first.here.gateway.services.dispatch.queue
            await first.until(lambda: queue.gateways == 2)
            await asked(first, 3)
            await asked(second, 2)
            found = await compared(first)
        assert len(found["gateways"]) == 2
        assert (found["policy"], found["shadow_policy"], found["share"]) == ("round_robin", "cost", 0.0)
        assert found["shadow"]["compared"] == 5
        assert 0 <= found["shadow"]["differed"] <= 5
        assert found["by_shadow"]["total"]["requests"] == 0


async def test_requests_that_the_shadow_policy_decided_are_counted_apart(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        async with gateway(one, other, **SHADOW, **{"routing.shadow.share": "1"}) as running:
            await asked(running, 3)
            found = await compared(running)
        assert found["by_shadow"]["total"]["requests"] == found["all"]["total"]["requests"] == 3
