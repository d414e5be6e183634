"""The server time of one delivery of an index change: a message on a sharded channel with many subscribers."""

import asyncio
from pathlib import Path
from typing import Any

import redis.asyncio as redis

from tests.stage.valkey import ValkeyServer

CHANNEL = "rg:v3:{ix:00}"
MESSAGE_BYTES = 150
SUBSCRIBERS = 64
MESSAGES = 2000


async def us_per_delivery(directory: Path) -> float:
    """Return the microseconds of server time that each further subscriber costs, for each message."""
    server = ValkeyServer(directory)
    await asyncio.to_thread(server.start)
    try:
        alone = await _cpu_seconds(server, 1)
        many = await _cpu_seconds(server, SUBSCRIBERS)
    finally:
        server.kill()
    return (many - alone) * 1e6 / (MESSAGES * (SUBSCRIBERS - 1))


async def _cpu_seconds(server: ValkeyServer, subscribers: int) -> float:
    """Return the server time of all messages with so many subscribers."""
    connections = [await asyncio.open_unix_connection(server.socket) for _ in range(subscribers)]
    for reader, writer in connections:
        writer.write(f"SSUBSCRIBE {CHANNEL}\r\n".encode())
        await reader.readuntil(b":1\r\n")
    drains = [asyncio.create_task(_drain(reader)) for reader, _ in connections]
    client: Any
    async with redis.from_url(server.url) as client:
        before = await client.info("cpu")
        for _ in range(MESSAGES):
            await client.execute_command("SPUBLISH", CHANNEL, b"x" * MESSAGE_BYTES)
        after = await client.info("cpu")
    for _, writer in connections:
        writer.close()
    await asyncio.gather(*drains)
    return sum(float(after[name]) - float(before[name]) for name in ("used_cpu_user", "used_cpu_sys"))


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass
