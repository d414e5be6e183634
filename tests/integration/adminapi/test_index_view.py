"""The prefix index as the admin API shows it."""

from tests.fakes.scripted_worker import ScriptedWorker

SHARED = "A beginning that all of these prompts have in common. " * 40


async def index(running, query="", status=200):
    async with running.http.get(f"{running.admin}/admin/v1/index?{query}") as response:
        assert response.status == status
        return await response.json()


async def test_the_index_is_shown_as_a_tree_of_hashes_and_counts(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        for tenant, end in (("acme", "one " * 200), ("acme", "two " * 200), ("globex", "three " * 200)):
            async with running.chat(SHARED + end, tenant=tenant, stream=True) as response:
                await response.read()
        await running.settled()
        await running.until(lambda: len(running.here.gateway.index.index.replica.nodes) >= 4)
        found = await index(running)
        nodes = {node["id"]: node for node in found["nodes"]}
        assert found["nodes_total"] == len(nodes)
        assert sum(node["blocks"] for node in nodes.values()) == found["blocks_total"]
        assert {node["group"] for node in nodes.values()} == {"tenant:acme", "tenant:globex"}
        seen = set()
        for node in found["nodes"]:
            assert node["parent"] is None or node["parent"] in seen
            assert node["holders"] == {"w0": node["blocks"]}
            seen.add(node["id"])
        (root,) = [n for n in nodes.values() if n["parent"] is None and n["group"] == "tenant:acme"]
        assert root["children"] == 2
        assert "beginning" not in str(found)


async def test_the_index_is_filtered_and_bounded(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        for tenant in ("acme", "globex"):
            async with running.chat(SHARED, tenant=tenant, stream=True) as response:
                await response.read()
        await running.until(lambda: len(running.here.gateway.index.index.replica.nodes) >= 2)
        assert {node["group"] for node in (await index(running, "group=tenant:acme"))["nodes"]} == {
            "tenant:acme"
        }
        assert (await index(running, "model=other"))["nodes"] == []
        assert (await index(running, "worker=w9"))["nodes"] == []
        assert len((await index(running, "nodes=1"))["nodes"]) == 1
        for query in ("nodes=0", "nodes=501", "depth=1"):
            assert (await index(running, query, status=400))["status"] == 400
