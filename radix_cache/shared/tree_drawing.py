"""The tree in ASCII, as far as it fits. Pure: it looks at the read copy.

    llama  tenant:acme  blocks of 64 tokens
    `-- 0-11  12 blocks, used 3 s ago  gpu-0 12, gpu-1 12 (GPU 4, host 10)
        |-- 12-19  8 blocks, used 3 s ago  gpu-0 8
        `-- 12-15  4 blocks, used 1 min ago  gpu-1 4  (2 below)

Counts are leading blocks; those in brackets are cumulative, "host" being GPU or host memory. Nodes near the root
come first, and among these the most recently used; what is left out is counted.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from radix_cache.match import WorkerId
from radix_cache.shared.keys import NamespaceId
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.replica import TreeReplica
from radix_cache.tiers import TierBlocks

HOLDERS_SHOWN_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawingOptions:
    """What is asked for. `namespaces`: all of them where it is None. `depth_max`: nodes above one another."""

    namespaces: frozenset[NamespaceId] | None = None
    worker: WorkerId | None = None
    depth_max: int | None = None
    nodes_max: int = 50


def draw_tree(replica: TreeReplica, view: DrawingOptions, title: Callable[[NamespaceId], str]) -> Iterator[str]:
    """The lines; the last one counts."""
    shown = _Drawing(replica, view)
    spaces: dict[NamespaceId, list[ReplicaNode]] = {}
    for root in shown.roots:
        spaces.setdefault(root.namespace, []).append(root)
    for namespace, roots in spaces.items():
        visible = [root for root in roots if root in shown.chosen]
        if visible:
            yield title(namespace)
            yield from shown.lines(visible)
    yield f"{len(shown.chosen)} of {shown.nodes} nodes shown."


class _Drawing:
    def __init__(self, replica: TreeReplica, view: DrawingOptions) -> None:
        self._replica = replica
        self._view = view
        self._tenure = replica.tenures.get(view.worker) if view.worker is not None else None
        self._names = {tenure: worker for worker, tenure in replica.tenures.items()}
        self._now = replica.server_seconds()
        nodes = [node for node in replica.nodes.values() if self._wanted(node)]
        self.nodes = len(nodes)
        self.roots = self._sorted(node for node in nodes if node.parent is None)
        self.chosen = self._choose()

    def lines(self, roots: list[ReplicaNode]) -> Iterator[str]:
        waiting = [(node, "", node is roots[-1]) for node in reversed(roots)]
        while waiting:
            node, indent, last = waiting.pop()
            children = self._children(node)
            visible = [child for child in children if child in self.chosen]
            hidden = len(children) - len(visible)
            more = f"  ({hidden} below)" if hidden else ""
            yield f"{indent}{'`-- ' if last else '|-- '}{self._text(node)}{more}"
            further = indent + ("    " if last else "|   ")
            waiting += [(child, further, child is visible[-1]) for child in reversed(visible)]

    def _choose(self) -> set[ReplicaNode]:
        """Level by level, until there are enough."""
        chosen: set[ReplicaNode] = set()
        waiting = deque((root, 1) for root in self.roots)
        while waiting and len(chosen) < self._view.nodes_max:
            node, level = waiting.popleft()
            chosen.add(node)
            if self._view.depth_max is None or level < self._view.depth_max:
                waiting.extend((child, level + 1) for child in self._children(node))
        return chosen

    def _wanted(self, node: ReplicaNode) -> bool:
        view = self._view
        if view.namespaces is not None and node.namespace not in view.namespaces:
            return False
        return view.worker is None or (self._tenure is not None and node.count(self._tenure) > 0)

    def _children(self, node: ReplicaNode) -> list[ReplicaNode]:
        return self._sorted(child for child in node.children or () if self._wanted(child))

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
            f"  {', '.join(names) or 'nobody'}"
        )


def _tiers(held: TierBlocks) -> str:
    """The blocks, and how many of them lie how near unless all are on the GPU."""
    return str(held.all) if held.gpu == held.all else f"{held.all} (GPU {held.gpu}, host {held.host})"


def _ago(seconds: int) -> str:
    """Roughly."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{max(seconds, 0)} s ago"
