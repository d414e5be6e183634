"""The commands of OPERATIONS.md that move a release from SQLite to PostgreSQL, in a cluster on this machine."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import asyncpg
import pytest

from helm.tests.cluster.local_cluster import LocalCluster, local_cluster
from helm.tests.test_install import chat
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.postgres import PostgresServer

GATEWAY = "release-radixgate-0"
CONFIG = ("--config", "/etc/radixgate/gateway.yaml")


async def in_gateway(cluster: LocalCluster, *words: str, stdin: bytes | None = None) -> bytes:
    """What a command inside the gateway's container writes, as with `kubectl exec -i`."""
    code, output, errors = await cluster.pods[GATEWAY].execute("radixgate", *words, *CONFIG, stdin=stdin)
    assert code == 0, errors
    return output


async def answered(cluster: LocalCluster, key: str) -> int:
    """The status of a completion, once the gateway has read the key: changes take effect within a second."""
    for _ in range(50):
        status, _ = await chat(cluster, key)
        if status != 401:
            return status
        await asyncio.sleep(0.2)
    return 401


@pytest.mark.timeout(600)
async def test_a_backup_takes_tenants_keys_and_usage_from_sqlite_to_postgresql() -> None:
    # Not below pytest's directory: PostgreSQL, which does not run as root, has to come through all of the path.
    directory = Path(tempfile.mkdtemp(prefix="radixgate-test-"))
    server = PostgresServer(directory)
    server.prepare()
    server.start()
    try:
        connection = await asyncpg.connect(server.url())
        await connection.execute("CREATE DATABASE gateways")
        await connection.close()
        async with local_cluster() as cluster, ScriptedWorker(models=["tiny-llama"]) as worker:
            values = {
                "redis": {"mode": "embedded"},
                "workers": {
                    "embedded": {"replicas": 0},
                    "external": [{"id": "scripted", "kind": "openai", "url": worker.url}],
                },
                "config": {"drain": {"notice_seconds": 0, "seconds": 5}},
                "metrics": {"dashboard": {"enabled": False}},
            }
            await cluster.install(values)
            await in_gateway(cluster, "tenants", "set", "acme")
            key = (await in_gateway(cluster, "keys", "create", "acme", "--quiet")).decode().strip()
            assert await answered(cluster, key) == 200
            await asyncio.sleep(3)  # Usage is stored a second after its request.

            backup = await in_gateway(cluster, "database", "backup", "-")
            url = server.url("gateways")
            await in_gateway(
                cluster, "database", "restore", "-", "--set", f"database.url={url}", stdin=backup
            )
            cluster.put_secret("database", {"url": url})
            moved = {**values, "database": {"mode": "external", "existingSecret": "database"}}
            await cluster.install(moved, command="upgrade")
            assert await answered(cluster, key) == 200
            used = (await in_gateway(cluster, "usage", "--by", "tenant")).decode()
            assert "acme" in used
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
