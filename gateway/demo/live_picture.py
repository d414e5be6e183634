"""The picture of a running gateway that the demo draws: the prefix tree as it grows, and the latest requests.

    prefix tree: 96 blocks in 11 prefixes              worker-0  worker-1  worker-2
    acme    ######  384 tokens, shared by 11 chats       *         *         .
            |- ####################  1,264 tokens          *         .         .
            |- ############  720 tokens                    .         *         .
            `- 8 more
    globex  #####  336 tokens, shared by 4 chats          .         .         *

    latest requests
    acme    416 tokens, 384 of them cached  -> worker-0   21 ms to the first token

A row at the margin is a run of blocks that prompts begin with, such as a system prompt; a row below it is all that
continues it in one conversation. A row has the colour of the worker that holds most of it, a request that of its
worker.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import aiohttp
from rich.console import Group
from rich.text import Text

REFRESH_SECONDS = 0.5
NODES_READ = 400
ROOTS_MAX = 5
BRANCHES_MAX = 3
REQUESTS_MAX = 6
BAR_WIDTH = 20
BLOCK, HOLDS, LACKS, ARROW = "\u2588", "\u25cf", "\u00b7", "\u2192"
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")


class LivePicture:
    """The picture of one gateway, read from its admin API at intervals while `refresh` runs."""

    def __init__(self, admin_url: str, workers: Sequence[str]) -> None:
        self._admin_url = admin_url
        self._colours = {worker: COLOURS[at % len(COLOURS)] for at, worker in enumerate(workers)}
        self._index: Mapping[str, Any] = {"nodes": [], "blocks_total": 0, "nodes_total": 0}
        self._requests: Sequence[Mapping[str, Any]] = ()

    async def refresh(self) -> None:
        """Read tree and requests every REFRESH_SECONDS; a gateway that does not answer keeps the last picture."""
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(f"{self._admin_url}/", timeout=timeout) as http:
            while True:
                try:
                    async with http.get("admin/v1/index", params={"nodes": NODES_READ}) as answer:
                        answer.raise_for_status()
                        self._index = await answer.json()
                    async with http.get("admin/v1/requests", params={"limit": REQUESTS_MAX}) as answer:
                        answer.raise_for_status()
                        self._requests = (await answer.json())["data"]
                except (aiohttp.ClientError, TimeoutError):
                    pass
                await asyncio.sleep(REFRESH_SECONDS)

    def drawn(self) -> Group:
        """Return the picture as of the last answers."""
        return Group(*tree_lines(self._index, self._colours), *request_lines(self._requests, self._colours))


def tree_lines(index: Mapping[str, Any], colours: Mapping[str, str]) -> Iterator[Text]:
    """Yield the lines of the prefix tree.

    Args:
        index: an answer of `GET /admin/v1/index`.
        colours: the colour of each worker.
    """
    title = f"prefix tree: {index['blocks_total']:,} blocks in {index['nodes_total']:,} prefixes"
    head = Text(f"{title:<60}", style="bold")
    for worker, colour in colours.items():
        head.append(f"{worker:^10}", style=colour)
    yield head
    below: dict[str | None, list[Mapping[str, Any]]] = {}
    for node in index["nodes"]:
        below.setdefault(node["parent"], []).append(node)
    roots = sorted(below.get(None, ()), key=lambda node: (node["group"], node["id"]))[:ROOTS_MAX]
    branches = {root["id"]: [_Branch(child, below) for child in below.get(root["id"], ())] for root in roots}
    sizes = [branch.tokens for found in branches.values() for branch in found] + [
        _tokens(root) for root in roots
    ]
    longest = max(sizes, default=1)
    for root in roots:
        group, found = root["group"].removeprefix("tenant:"), branches[root["id"]]
        shared = f", shared by {len(found)} chats" if len(found) > 1 else ""
        yield _row(f"{group:<8.8}", _tokens(root), longest, shared, root["holders"], colours)
        found.sort(key=lambda branch: (-branch.tokens, branch.id))
        for branch in found[:BRANCHES_MAX]:
            yield _row(f"{'':8}|- ", branch.tokens, longest, "", branch.holders, colours)
        if len(found) > BRANCHES_MAX:
            yield Text(f"{'':8}`- {len(found) - BRANCHES_MAX} more", style="dim")


class _Branch:
    """A node with all that is below it: its tokens, and the tokens by worker."""

    def __init__(
        self, node: Mapping[str, Any], below: Mapping[str | None, Sequence[Mapping[str, Any]]]
    ) -> None:
        self.id: str = node["id"]
        self.tokens = 0
        self.holders: dict[str, int] = {}
        waiting = [node]
        while waiting:
            one = waiting.pop()
            self.tokens += _tokens(one)
            for worker, blocks in one["holders"].items():
                self.holders[worker] = self.holders.get(worker, 0) + blocks
            waiting += below.get(one["id"], ())


def _tokens(node: Mapping[str, Any]) -> int:
    return int(node["blocks"] * node["block_tokens"])


def _row(
    margin: str,
    tokens: int,
    longest: int,
    remark: str,
    holders: Mapping[str, int],
    colours: Mapping[str, str],
) -> Text:
    most = max(holders, key=holders.__getitem__, default="")
    line = Text(margin)
    line.append(BLOCK * max(1, round(BAR_WIDTH * tokens / longest)), style=colours.get(most, "dim"))
    line.append(f"  {tokens:,} tokens{remark}", style="dim")
    line.truncate(60, pad=True)
    for worker, colour in colours.items():
        line.append(f"{HOLDS if worker in holders else LACKS:^10}", style=colour)
    return line


def request_lines(requests: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> Iterator[Text]:
    """Yield the lines of the latest requests, the latest first.

    Args:
        requests: the requests of an answer of `GET /admin/v1/requests`.
        colours: the colour of each worker.
    """
    yield Text("\nlatest requests", style="bold")
    for request in requests[:REQUESTS_MAX]:
        worker, ttft_ms = request["worker"] or "", request["ttft_ms"]
        line = Text(f"{request['tenant']:<8.8}{request['prompt_tokens']:>6,} tokens, ")
        line.append(f"{request['cached_tokens'] or 0:>6,} of them cached", style=colours.get(worker, "dim"))
        line.append(f"  {ARROW} ")
        line.append(f"{worker:<10}", style=colours.get(worker, "dim"))
        line.append(f"{ttft_ms:>6,.0f} ms to the first token" if ttft_ms is not None else "")
        yield line
