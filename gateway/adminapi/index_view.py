"""The operation that shows the prefix index as a tree: which worker holds which prefixes, by model and tenant.

Prefixes are hashes and counts; no text can be read from them.
"""

from collections.abc import Mapping
from heapq import nlargest

import msgspec

from gateway.adminapi.operation import Operation, OperationRequest, OperationResponse
from gateway.adminapi.query_parameters import check_names, number
from radix_cache.loop_yield import LoopYielder
from radix_cache.shared.index_counts import UNKNOWN_NAMESPACE, namespaces_of
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.replica import TreeReplica

NODES_MAX = 500
NODES = 120
HOLDERS_MAX = 16

QUERY_PARAMETERS = {
    "model": "Only prefixes of this model.",
    "group": "Only prefixes of this isolation group, such as `tenant:acme`; empty: those that tenants share.",
    "worker": "Only prefixes of which this worker holds something.",
    "nodes": f"Nodes at most, 1 to {NODES_MAX}; {NODES} by default. The most recently used come first.",
}


class IndexNodeShown(msgspec.Struct, kw_only=True):
    """A run of blocks. `id`: the hash of its first block. `depth`: blocks before it.

    `holders`: leading blocks by worker, of at most 16 workers. `copies`: how many workers hold some of it.
    """

    id: str
    parent: str | None
    model: str
    group: str
    depth: int
    blocks: int
    block_tokens: int
    used_seconds_ago: int
    copies: int
    holders: dict[str, int]
    children: int


class IndexShown(msgspec.Struct, kw_only=True):
    """The prefix index, as this gateway's copy has it. `nodes`: the ones shown, parents before their children."""

    nodes_total: int
    blocks_total: int
    selected: int
    nodes: list[IndexNodeShown]


def operations(replica: TreeReplica) -> list[Operation]:
    """Return the operation that shows the index."""

    async def show(request: OperationRequest) -> OperationResponse:
        return OperationResponse(value=await index_shown(replica, request.http.query))

    return [
        Operation(
            method="GET",
            path="/index",
            role="viewer",
            summary="Show the prefix index as a tree: which worker holds which prefixes. Hashes and counts only.",
            handle=show,
            response_type=IndexShown,
            query_parameters=QUERY_PARAMETERS,
        )
    ]


async def index_shown(replica: TreeReplica, parameters: Mapping[str, str]) -> IndexShown:
    """Return the most recently used nodes that match the parameters, each with the path to it. Raises Problem."""
    check_names(parameters, QUERY_PARAMETERS)
    nodes_max = number(parameters, "nodes", NODES, NODES_MAX, least=1)
    selection = _Selection(replica, parameters)
    selected = await selection.nodes()
    return IndexShown(
        nodes_total=len(replica.nodes),
        blocks_total=replica.blocks,
        selected=len(selected),
        nodes=[selection.shown(node) for node in _with_paths(selected, nodes_max)],
    )


class _Selection:
    """The nodes of the index that match the query parameters."""

    def __init__(self, replica: TreeReplica, parameters: Mapping[str, str]) -> None:
        self._replica = replica
        self._namespaces = namespaces_of(replica)
        self._workers = {tenure: worker for worker, tenure in replica.tenures.items()}
        self._now = replica.server_seconds()
        model, group = parameters.get("model"), parameters.get("group")
        self._wanted = {
            identity
            for identity, space in self._namespaces.items()
            if model in (None, space.model) and group in (None, space.group)
        }
        self._every = model is None and group is None
        self._worker = parameters.get("worker")
        self._tenure = next((t for t, worker in self._workers.items() if worker == self._worker), None)

    async def nodes(self) -> list[ReplicaNode]:
        """Return the nodes that match; the event loop runs other tasks in between."""
        yielder, found = LoopYielder(), []
        for seen, node in enumerate(list(self._replica.nodes.values())):
            if seen % 1024 == 0:
                await yielder.yield_if_due()
            if (self._every or node.tree in self._wanted) and self._is_held(node):
                found.append(node)
        return found

    def shown(self, node: ReplicaNode) -> IndexNodeShown:
        """Return a node as the API shows it."""
        space = self._namespaces.get(node.tree, UNKNOWN_NAMESPACE)
        held = {
            self._workers[tenure]: tiers.all for tenure, tiers in node.holders() if tenure in self._workers
        }
        most = nlargest(HOLDERS_MAX, held.items(), key=lambda holder: holder[1])
        return IndexNodeShown(
            id=f"{node.key:016x}",
            parent=f"{node.parent.key:016x}" if node.parent is not None else None,
            model=space.model,
            group=space.group,
            depth=node.depth,
            blocks=len(node.run),
            block_tokens=space.block_size,
            used_seconds_ago=max(0, self._now - node.used),
            copies=len(held),
            holders=dict(most),
            children=len(node.children or ()),
        )

    def _is_held(self, node: ReplicaNode) -> bool:
        if self._worker is None:
            return True
        return self._tenure is not None and node.count(self._tenure) > 0


def _with_paths(nodes: list[ReplicaNode], most: int) -> list[ReplicaNode]:
    """Return at most so many nodes, the most recently used first, with the nodes above them; parents come first."""
    chosen: dict[int, ReplicaNode] = {}
    for node in nlargest(most, nodes, key=lambda node: (node.used, -node.depth)):
        path, at = [], node
        while at.key not in chosen:
            path.append(at)
            if at.parent is None:
                break
            at = at.parent
        if len(chosen) + len(path) > most:
            break
        chosen.update((each.key, each) for each in reversed(path))
    return list(chosen.values())
