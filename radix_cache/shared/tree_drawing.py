"""Draws the tree of the replica in ASCII, limited to a number of nodes; does no I/O.

    llama  tenant:acme  blocks of 64 tokens
    `-- 0-11  12 blocks, used 3 s ago  gpu-0 12, gpu-1 12 (GPU 4, host 10)
        |-- 12-19  8 blocks, used 3 s ago  gpu-0 8
        `-- 12-15  4 blocks, used 1 min ago  gpu-1 4  (2 below)

Counts are leading blocks; those in brackets are cumulative: "host" counts blocks on the GPU or in host memory.
Nodes near the root come first, and among these the most recently used; nodes that are left out are counted.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from radix_cache.match import WorkerId
from radix_cache.shared.keys import TreeId
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.replica import TreeReplica
from radix_cache.tiers import TierBlocks

HOLDERS_SHOWN_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawingOptions:
    """Which part of the tree to draw."""

    namespaces: frozenset[TreeId] | None = None
    """The namespaces to draw; None: all."""
    worker: WorkerId | None = None
    """Draw only nodes of which this worker holds something."""
    depth_max: int | None = None
    """How many levels of nodes to draw."""
    nodes_max: int = 50


def draw_tree(replica: TreeReplica, options: DrawingOptions, title: Callable[[TreeId], str]) -> Iterator[str]:
    """Yield the lines of the drawing; the last line has the number of nodes shown."""
    drawing = _Drawing(replica, options)
    roots_by_title: dict[str, list[ReplicaNode]] = {}
    for root in drawing.roots:
        roots_by_title.setdefault(title(root.tree), []).append(root)
    for line, roots in roots_by_title.items():
        visible = [root for root in roots if root in drawing.shown]
        if visible:
            yield line
            yield from drawing.lines(visible)
    yield f"{len(drawing.shown)} of {drawing.nodes} nodes shown."


class _Drawing:
    def __init__(self, replica: TreeReplica, options: DrawingOptions) -> None:
        self._replica = replica
        self._options = options
        self._tenure = replica.tenures.get(options.worker) if options.worker is not None else None
        self._names = {tenure: worker for worker, tenure in replica.tenures.items()}
        self._now = replica.server_seconds()
        nodes = [node for node in replica.nodes.values() if self._is_selected(node)]
        self.nodes = len(nodes)
        self.roots = self._sorted(node for node in nodes if node.parent is None)
        self.shown = self._choose()

    def lines(self, roots: list[ReplicaNode]) -> Iterator[str]:
        waiting = [(node, "", node is roots[-1]) for node in reversed(roots)]
        while waiting:
            node, indent, last = waiting.pop()
            children = self._children(node)
            visible = [child for child in children if child in self.shown]
            hidden = len(children) - len(visible)
            more = f"  ({hidden} below)" if hidden else ""
            yield f"{indent}{'`-- ' if last else '|-- '}{self._text(node)}{more}"
            further = indent + ("    " if last else "|   ")
            waiting += [(child, further, child is visible[-1]) for child in reversed(visible)]

    def _choose(self) -> set[ReplicaNode]:
        """Choose nodes level by level, until there are `nodes_max`."""
        shown: set[ReplicaNode] = set()
        waiting = deque((root, 1) for root in self.roots)
        while waiting and len(shown) < self._options.nodes_max:
            node, level = waiting.popleft()
            shown.add(node)
            if self._options.depth_max is None or level < self._options.depth_max:
                waiting.extend((child, level + 1) for child in self._children(node))
        return shown

    def _is_selected(self, node: ReplicaNode) -> bool:
        options = self._options
        if options.namespaces is not None and node.tree not in options.namespaces:
            return False
        return options.worker is None or (self._tenure is not None and node.count(self._tenure) > 0)

    def _children(self, node: ReplicaNode) -> list[ReplicaNode]:
        return self._sorted(child for child in node.children or () if self._is_selected(child))

    def _sorted(self, nodes: Iterable[ReplicaNode]) -> list[ReplicaNode]:
        return sorted(nodes, key=lambda node: (-node.used, node.depth, node.key))

    def _text(self, node: ReplicaNode) -> str:
        held = sorted(node.holders(), key=lambda holder: (-holder[1].all, self._names.get(holder[0], "")))
        names = [
            f"{self._names.get(tenure, f'(tenure {tenure}, over)')} {_tiers(tiers)}"
            for tenure, tiers in held[:HOLDERS_SHOWN_MAX]
        ]
        if len(held) > HOLDERS_SHOWN_MAX:
            names.append(f"{len(held) - HOLDERS_SHOWN_MAX} more")
        blocks = f"{len(node.run)} block{'s' if len(node.run) > 1 else ''}"
        return (
            f"{node.depth}-{node.end - 1}  {blocks}, used {_ago(self._now - node.used)}"
            f"  {', '.join(names) or 'no holder'}"
        )


def _tiers(held: TierBlocks) -> str:
    """Return the count of blocks as text, with the counts by tier unless all blocks are on the GPU."""
    return str(held.all) if held.gpu == held.all else f"{held.all} (GPU {held.gpu}, host {held.host})"


def _ago(seconds: int) -> str:
    """Return a rough duration as text."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{max(seconds, 0)} s ago"
