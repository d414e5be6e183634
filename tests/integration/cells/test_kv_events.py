"""A worker of two cells: each cell's index follows the caches of its own tenants alone."""

import asyncio

import redis.asyncio as redis

from tests.integration.conftest import MODEL, PAGE_SIZE
from tests.stage.cells import cell_fleet

PROMPT = 40 * "the quick brown fox "


async def test_the_index_of_a_cell_has_no_changes_by_other_cells_tenants(tmp_path, embedded, checkpoint):
    models = [{"name": MODEL, "tokenizer": str(checkpoint), "block_size": PAGE_SIZE, "context_length": 4096}]
    # One worker, so that only the index decides what is predicted, and no speed that a busy machine has taught.
    urls = [embedded[0].url]
    async with cell_fleet(tmp_path, urls, cells={"east": 1, "west": 1}, model=MODEL, models=models) as fleet:
        east = fleet.gateways["east"][0]
        clients = {cell: redis.from_url(valkey.url) for cell, valkey in fleet.valkeys.items()}

        async def changes(cell):
            """How often the index of a cell has changed."""
            stats = await clients[cell].info("commandstats")
            return stats.get("cmdstat_spublish", {"calls": 0})["calls"]

        async def send(tenant, text):
            async with fleet.chat(east, tenant, text, model=MODEL) as answer:
                assert answer.status == 200, await answer.text()

        async def predicted(cell):
            """Cached tokens that the routing of a cell has predicted."""
            return (await fleet.gateways[cell][0].metrics(fleet.http))["predicted_cached_tokens_total"]

        async def until_changed(cell, before):
            async with asyncio.timeout(60):
                while await changes(cell) == before:
                    await asyncio.sleep(0.05)

        before = {cell: await changes(cell) for cell in clients}
        for at in range(4):
            await send(fleet.tenants_of("east")[0], f"{at} {PROMPT}")
        await until_changed("east", before["east"])
        # The events of both cells come from the same sockets, in their order: west's follow those of east.
        assert await changes("west") == before["west"]
        await send(fleet.tenants_of("west")[0], PROMPT)
        await until_changed("west", before["west"])
        # A prefix that its cell knows is found again.
        assert await predicted("west") == 0
        async with asyncio.timeout(60):
            while await predicted("west") == 0:
                await send(fleet.tenants_of("west")[0], PROMPT)
        for client in clients.values():
            await client.aclose()
