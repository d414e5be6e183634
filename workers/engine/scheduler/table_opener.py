"""Opens the block tables of sequences that are about to run, in the KV layout that the engine was started with."""

from collections.abc import Callable

from workers.engine.config.engine_config import KvLayout
from workers.engine.kv.baseline_tables import ContiguousTable, UncachedTable
from workers.engine.kv.block_table import BlockTable, KVTable
from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.scheduler.sequence import Sequence

OpenTable = Callable[[Sequence], KVTable]
"""Opens the block table of a sequence."""


def table_opener(layout: KvLayout, tree: PrefixTree, *, shares: bool = True) -> OpenTable:
    """Return the function that opens tables in `layout`, with blocks from the tree's pool.

    `shares` turns prefix caching on.
    """
    if layout == "contiguous":
        return lambda sequence: ContiguousTable(tree.pool, sequence.num_prompt + sequence.params.max_tokens)
    if layout == "none":
        return lambda sequence: UncachedTable(tree.pool.block_size)
    return lambda sequence: _paged(tree, sequence, shares)


def _paged(tree: PrefixTree, sequence: Sequence, shares: bool) -> BlockTable:
    # Another engine sends only the blocks inside the attention window. The tree must not count the blocks before it
    # as computed.
    shares = shares and not (sequence.handoff_role == "decode" and tree.window)
    table = BlockTable(tree, sequence.tokens, sequence.salt, sequence.lora, shares=shares)
    if sequence.leader and isinstance(sequence.leader.table, BlockTable):
        # All but the last token: this sequence has to compute the logits of its last prompt token itself.
        table.share_tail(sequence.leader.table, sequence.num_prompt - 1)
    return table
