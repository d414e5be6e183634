"""Results of a batch as they are read from the database, to be written into its file."""

import time
import tracemalloc

from gateway.database.batch_store import IN_PROGRESS, BatchStore, RowResult, StoredBatch
from gateway.database.database import Database

LINE = 1024 * 1024


async def test_long_results_pass_in_bounded_memory_and_in_their_order(tables_url, tmp_path):
    database = Database(tables_url, tmp_path)
    store = BatchStore(database, "here")
    now = time.time()
    batch = StoredBatch(
        id="b",
        tenant="acme",
        key_id="k",
        status=IN_PROGRESS,
        endpoint="/v1/embeddings",
        window="24h",
        input_file="f",
        created=now,
        expires=now + 100,
        moments={},
    )
    await store.create(batch, unfinished_max=9)
    claimed = await store.claim(60)
    for row in range(60):
        await store.add_results(claimed, [RowResult(row=row, good=row % 3 > 0, line=f"{row:0{LINE}}")])
    read = {}
    tracemalloc.start()
    for good in (None, True, False):
        read[good] = [
            int(line[-4:]) async for line in store.result_lines(claimed, good=good) if len(line) == LINE
        ]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read == {
        None: list(range(60)),
        True: [row for row in range(60) if row % 3],
        False: list(range(0, 60, 3)),
    }
    assert peak < 25 * LINE
    await database.close()
