"""Report of `radixgate index stats`: counts of the prefix index, as tables or as JSON."""

import json as json_

from gateway.cli.support.columns import Row, format_columns
from gateway.cli.support.index_access import IndexAccess, copy_index, open_index
from gateway.settings.tree import Settings
from radix_cache.redis.call import RedisDown
from radix_cache.shared.index_counts import BlockCounts, IndexCounts, count_index, namespaces_of
from radix_cache.shared.keys import TreeId


async def index_stats(settings: Settings, json: bool) -> list[str]:
    """Return the lines to print. Raises CommandError if the index cannot be read."""
    async with open_index(settings) as access:
        replica = await copy_index(access, settings)
        trees: dict[bytes, TreeId] = {}
        for shard in {shard for shard, _, _ in replica.predictions_under_way()}:
            trees.update(await access.reading.prediction_trees(shard))
        memory = await _memory(access)
    found = count_index(replica, namespaces_of(replica), trees)
    return [_as_json(found, memory)] if json else _as_tables(found, memory)


async def _memory(access: IndexAccess) -> int | None:
    """Return the memory in bytes that all Redis servers use for all keys; None if a server does not report it."""
    used = 0
    try:
        async with access.redis.connect_all() as lines:
            for line in lines:
                reply = await line.execute(["INFO", "memory"])
                text = reply.decode() if isinstance(reply, bytes) else ""
                info = dict(part.partition(":")[::2] for part in text.splitlines())
                if not info.get("used_memory", "").isdigit():
                    return None
                used += int(info["used_memory"])
    except RedisDown:
        return None
    return used


def _as_tables(found: IndexCounts, memory: int | None) -> list[str]:
    head = ("namespaces", "nodes", "blocks", "tokens", "predictions")
    groups: list[Row] = [
        (model, group or "(shared)", *_figures(tally).values())
        for (model, group), tally in sorted(found.groups.items())
    ]
    workers: list[Row] = [(worker, *_of_worker(tally).values()) for worker, tally in found.workers.items()]
    if found.remains.nodes or found.remains.predictions:
        workers.append(("(ended, to be removed)", *_of_worker(found.remains).values()))
    used = "unknown" if memory is None else f"{memory / 2**20:.1f} MiB"
    return [
        *format_columns([("model", "group", *head), *groups, ("total", "", *_figures(found.total).values())]),
        "",
        *format_columns([("worker", *head, "on GPU", "GPU or host"), *workers]),
        "",
        f"Redis uses {used} of memory, for all its keys.",
    ]


def _as_json(found: IndexCounts, memory: int | None) -> str:
    tree = {
        "models": [
            {"model": model, "group": group, **_figures(tally)}
            for (model, group), tally in sorted(found.groups.items())
        ],
        "workers": [{"worker": worker, **_of_worker(tally)} for worker, tally in found.workers.items()],
        "remains": _of_worker(found.remains),
        "total": _figures(found.total),
        "redis_memory_bytes": memory,
    }
    return json_.dumps(tree, indent=2)


def _figures(tally: BlockCounts) -> dict[str, int]:
    return {
        "namespaces": len(tally.namespaces),
        "nodes": tally.nodes,
        "blocks": tally.blocks,
        "tokens": tally.tokens,
        "predictions": tally.predictions,
    }


def _of_worker(tally: BlockCounts) -> dict[str, int]:
    """Return the figures of one worker.

    `gpu_blocks` are its blocks on the GPU, `host_blocks` its blocks on the GPU or in host memory.
    """
    return {**_figures(tally), "gpu_blocks": tally.gpu_blocks, "host_blocks": tally.host_blocks}
