"""Metrics of several processes as one page: every series says of which process it is.

Each family's head stands once, with the series of all processes below it, as the format asks for.
"""

import asyncio
import logging
from collections.abc import Mapping

import aiohttp

from gateway.process.multiprocess import GatewayProcess

log = logging.getLogger(__name__)

SECONDS_MAX = 5.0


async def texts_of_others(one: GatewayProcess, accept: str) -> dict[int, bytes]:
    """What the other processes say now, by number; without those that do not answer."""
    others = [number for number in range(one.count) if number != one.number]
    found = await asyncio.gather(*(_asked(one, number, accept) for number in others))
    return {number: text for number, text in zip(others, found, strict=True) if text is not None}


async def _asked(one: GatewayProcess, number: int, accept: str) -> bytes | None:
    connector = aiohttp.UnixConnector(path=str(one.admin_socket(number)))
    timeout = aiohttp.ClientTimeout(total=SECONDS_MAX)
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            async with http.get("http://localhost/metrics", headers={"Accept": accept}) as answer:
                answer.raise_for_status()
                return await answer.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as err:
        log.warning("process %d does not tell its metrics: %s", number, err or "not in time")
        return None


def merged(texts: Mapping[int, bytes]) -> bytes:
    """One text of several, by number of the process."""
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
                series.setdefault(family, []).append(_labelled(line, label))
    lines = [line for family, head in heads.items() for line in (*head, *series.get(family, ()))]
    return b"\n".join(lines) + b"\n" + ends


def _labelled(line: bytes, label: bytes) -> bytes:
    name, brace, rest = line.partition(b"{")
    if brace and b" " not in name:
        return name + b"{" + label + b"," + rest
    name, _, value = line.partition(b" ")
    return name + b"{" + label + b"} " + value
