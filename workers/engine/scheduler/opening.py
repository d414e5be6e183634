"""Opens the block table of a sequence that is about to run, in the layout that the engine was started with."""

from collections.abc import Callable

from workers.engine.config.engine_config import KvLayout
from workers.engine.kv.baseline_tables import ContiguousTable, UncachedTable
from workers.engine.kv.block_table import BlockTable, KVTable
from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.scheduler.sequence import Sequence

OpenTable = Callable[[Sequence], KVTable]


def table_opener(layout: KvLayout, tree: PrefixTree, *, shares: bool = True) -> OpenTable:
    """How tables are opened under `layout`; the tree and its pool are theirs. `shares`: with prefix caching."""
    if layout == "contiguous":
        return lambda sequence: ContiguousTable(tree.pool, sequence.num_prompt + sequence.params.max_tokens)
    if layout == "none":
        return lambda sequence: UncachedTable(tree.pool.block_size)
    return lambda sequence: _paged(tree, sequence, shares)


def _paged(tree: PrefixTree, sequence: Sequence, shares: bool) -> BlockTable:
    # What another engine fills begins at the window. The tree must not take what lies before for computed.
    shares = shares and not (sequence.handoff == "take" and tree.window)
    table = BlockTable(tree, sequence.tokens, sequence.salt, shares=shares)
    if sequence.leader and isinstance(sequence.leader.table, BlockTable):
        # All but the last token: the logits of that one are this sequence's own to compute.
        table.share_tail(sequence.leader.table, sequence.num_prompt - 1)
    return table
