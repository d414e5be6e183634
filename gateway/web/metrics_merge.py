"""Merges the metrics of several gateway processes into one text; every series gets the label `process`.

The head of each metric family appears once, with the series of all processes below it, as the format requires.
"""

import asyncio
import logging
from collections.abc import Mapping

import aiohttp

from gateway.process.multiprocess import GatewayProcess

log = logging.getLogger(__name__)

SECONDS_MAX = 5.0
"""Longest wait for another process's metrics."""


async def other_processes_metrics(process: GatewayProcess, accept: str) -> dict[int, bytes]:
    """Return the current metrics of the other processes by number; processes that do not answer are left out."""
    others = [number for number in range(process.count) if number != process.number]
    found = await asyncio.gather(*(_fetch_metrics(process, number, accept) for number in others))
    return {number: text for number, text in zip(others, found, strict=True) if text is not None}


async def _fetch_metrics(process: GatewayProcess, number: int, accept: str) -> bytes | None:
    connector = aiohttp.UnixConnector(path=str(process.admin_socket(number)))
    timeout = aiohttp.ClientTimeout(total=SECONDS_MAX)
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            async with http.get("http://localhost/metrics", headers={"Accept": accept}) as answer:
                answer.raise_for_status()
                return await answer.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as err:
        log.warning("process %d does not answer with its metrics: %s", number, err or "timeout")
        return None


def merge_metrics(texts: Mapping[int, bytes]) -> bytes:
    """Return one text of the metrics of several processes, given by process number."""
    heads: dict[bytes, list[bytes]] = {}
    series: dict[bytes, list[bytes]] = {}
    ends = b""
    for number, text in sorted(texts.items()):
        label, family = b'process="%d"' % number, b""
        for line in text.splitlines():
            if line == b"# EOF":
                ends = b"# EOF\n"
            elif line.startswith(b"# "):
                family = line.split(b" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            elif line:
                series.setdefault(family, []).append(_add_label(line, label))
    lines = [line for family, head in heads.items() for line in (*head, *series.get(family, ()))]
    return b"\n".join(lines) + b"\n" + ends


def _add_label(line: bytes, label: bytes) -> bytes:
    name, brace, rest = line.partition(b"{")
    if brace and b" " not in name:
        return name + b"{" + label + b"," + rest
    name, _, value = line.partition(b" ")
    return name + b"{" + label + b"} " + value
