"""A real Redis primary with a replica and a sentinel on loopback; tests may kill and promote servers."""

import subprocess
from pathlib import Path
from typing import Any

import redis

from tests.fakes.redis_cluster import server_binary, until
from tests.stage.ports import free_ports
from tests.stage.server_program import start_program

SERVICE = "main"


class WatchedNode:
    """One server in a directory of its own; its data are lost when it is killed."""

    def __init__(self, directory: Path, port: int) -> None:
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis(port=port, protocol=2)
        self._directory = directory

    def start(self, *options: str) -> None:
        """Start the server and wait until it answers."""
        self._directory.mkdir(exist_ok=True)
        words = [*options, "--port", str(self.port), "--dir", str(self._directory), "--logfile", "log"]
        self.process = start_program([server_binary(), *words])
        until(self._answers, "a server that a sentinel watches does not start")

    @property
    def replication(self) -> dict[str, Any]:
        """The replication section of INFO: the role, and the primary or the replicas."""
        return dict(self.client.info("replication"))

    def copies(self) -> bool:
        """Return whether the server is a replica that has all data of its primary."""
        try:
            return self.replication.get("master_link_status") == "up"
        except redis.RedisError:
            return False

    def signal(self, number: int) -> None:
        """Send a signal to the server."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the server, also a stalled one."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        self.client.close()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


class WatchedServers:
    """A primary, its replica and a sentinel in a directory. Call `start` before use and `close` after it."""

    def __init__(self, directory: Path, *, down_after_ms: int) -> None:
        self._directory = directory
        self._down_after_ms = down_after_ms
        first, second, self.sentinel_port = free_ports(3)
        self.nodes = [WatchedNode(directory / str(port), port) for port in (first, second)]
        self.sentinel = WatchedNode(directory / "sentinel", self.sentinel_port)

    @property
    def url(self) -> str:
        """The URL of the service; the first sentinel that it names does not exist."""
        return f"redis+sentinel://127.0.0.1:1,127.0.0.1:{self.sentinel_port}/{SERVICE}"

    def start(self) -> None:
        """Start all servers, and wait until the sentinel knows primary and replica."""
        primary, replica = self.nodes
        primary.start("--save", "")
        replica.start("--save", "", "--replicaof", f"127.0.0.1 {primary.port}")
        until(replica.copies, "no replication")
        config = self._directory / "sentinel.conf"
        config.write_text(
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} {self._down_after_ms}\n"
            f"sentinel failover-timeout {SERVICE} 2000\n"
        )
        self.sentinel.start(str(config), "--sentinel")
        until(self._replica_is_known, "the sentinel knows no replica")

    def primary(self) -> WatchedNode:
        """Return the server that the sentinel names."""
        _, port = self.sentinel.client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(node for node in self.nodes if node.port == int(port))

    def replica(self) -> WatchedNode:
        """Return the other server."""
        primary = self.primary()
        return next(node for node in self.nodes if node is not primary)

    def close(self) -> None:
        """Kill all servers."""
        for node in (self.sentinel, *self.nodes):
            node.kill()

    def _replica_is_known(self) -> bool:
        return bool(self.sentinel.client.execute_command("SENTINEL", "REPLICAS", SERVICE))
