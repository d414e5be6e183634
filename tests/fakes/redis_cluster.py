"""A real Redis cluster of three servers, or more, on loopback, which tests may kill and start again."""

import os
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import redis

from gateway.process.embedded_valkey import find_server_binary
from tests.stage.ports import free_ports
from tests.stage.server_program import start_program

SLOTS = 16384
READY_SECONDS_MAX = 90.0


def server_binary() -> str:
    """Return the server program of the tests: RADIXGATE_TEST_REDIS, else the one that a gateway would start."""
    return os.environ.get("RADIXGATE_TEST_REDIS") or str(find_server_binary())


def until(true: Any, what: str) -> None:
    """Wait until the condition holds. Raises AssertionError with the text after READY_SECONDS_MAX."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Node:
    """One server of the cluster. Its directory keeps its node id; its data are lost when it is killed."""

    def __init__(self, directory: Path, port: int, bus: int, options: list[str]) -> None:
        self.port = port
        self.bus = bus
        self.process: subprocess.Popen[bytes] | None = None
        self._directory = directory
        self._options = options
        self._client = redis.Redis(port=port, protocol=2)

    def ask(self, *command: Any) -> Any:
        """Send a command to this server and return its reply."""
        return self._client.execute_command(*command)

    @property
    def id(self) -> str:
        """The node id."""
        return str(self.ask("CLUSTER", "MYID").decode())

    @property
    def replication(self) -> dict[str, Any]:
        """The replication section of INFO: the role, and the primary or the replicas."""
        return dict(self._client.info("replication"))

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._directory.mkdir(exist_ok=True)
        options = {
            "port": self.port,
            "cluster-port": self.bus,
            "bind": "127.0.0.1",
            "cluster-enabled": "yes",
            "save": "",
            "dir": self._directory,
            "logfile": "log",
        }
        words = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        command = [server_binary(), *words, *self._options]
        self.process = start_program(command)
        until(self.answers, "a server of the cluster does not start")

    def answers(self) -> bool:
        """Return whether the server answers. Raises AssertionError with its log when it has ended."""
        if self.process is not None and self.process.poll() is not None:
            raise AssertionError(f"a server has ended: {(self._directory / 'log').read_text()[-1000:]}")
        try:
            return bool(self._client.ping())
        except redis.RedisError:
            return False

    def kill(self) -> None:
        """Kill the server."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        self._client.close()

    def sees_all(self) -> bool:
        """Return whether every slot is served, as far as this server knows."""
        try:
            info = self.ask("CLUSTER", "INFO")
        except redis.RedisError:
            return False
        text = (
            info
            if isinstance(info, dict)
            else dict(line.split(":", 1) for line in bytes(info).decode().split() if ":" in line)
        )
        return text["cluster_state"] == "ok" and text["cluster_slots_ok"] == str(SLOTS)


class RedisCluster:
    """Primaries with an equal part of the slots each. Call `start` before use and `close` after it."""

    def __init__(self, *, node_timeout_ms: int, primaries: int = 3) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="radixgate-cluster-"))
        # With a server away the other servers go on serving their slots.
        options = ["--cluster-node-timeout", str(node_timeout_ms), "--cluster-require-full-coverage", "no"]
        self._options = options
        self.replicas: list[Node] = []
        ports = free_ports(2 * primaries)
        self.nodes = [
            Node(self._directory / str(port), port, bus, options)
            for port, bus in zip(ports[:primaries], ports[primaries:], strict=True)
        ]

    @property
    def url(self) -> str:
        """The URL of the cluster."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])

    def start(self) -> None:
        """Start the servers and wait until they have formed the cluster."""
        for node in self.nodes:
            node.start()
        bounds = [SLOTS * at // len(self.nodes) for at in range(len(self.nodes) + 1)]
        for at, node in enumerate(self.nodes):
            node.ask("CLUSTER", "ADDSLOTSRANGE", bounds[at], bounds[at + 1] - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        for node in self.nodes[1:]:
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus)
        until(self.whole, "the cluster does not form")

    def set_node_timeout(self, milliseconds: int) -> None:
        """Set after how long a silent server counts as down, also for servers that are started later."""
        self._options[1] = str(milliseconds)
        for node in self.nodes:
            node.ask("CONFIG", "SET", "cluster-node-timeout", milliseconds)

    def add_replica(self, of: Node) -> Node:
        """Start a replica of the server, which may take its place, and return it."""
        port, bus = free_ports(2)
        node = Node(self._directory / str(port), port, bus, self._options)
        node.start()
        node.ask("CLUSTER", "MEET", "127.0.0.1", of.port, of.bus)
        until(lambda: of.id.encode() in node.ask("CLUSTER", "NODES"), "a replica does not meet the cluster")
        until(node.sees_all, "a replica does not see the cluster")
        node.ask("CLUSTER", "REPLICATE", of.id)
        until(lambda: node.replication["master_link_status"] == "up", "a replica does not copy")
        self.replicas.append(node)
        return node

    def whole(self) -> bool:
        """Return whether every server sees every slot served."""
        return all(node.sees_all() for node in self.nodes)

    def members(self) -> list[Node]:
        """Return all servers that run."""
        return [node for node in self.nodes + self.replicas if node.process is not None]

    def primaries(self) -> list[Node]:
        """Return the servers that are primaries by their own word."""
        return [node for node in self.members() if node.replication["role"] == "master"]

    def replicas_of(self, primary: Node) -> list[Node]:
        """Return the replicas that have all data of the primary."""
        found = [(node, node.replication) for node in self.members()]
        wanted = {"role": "slave", "master_port": primary.port, "master_link_status": "up"}
        return [node for node, state in found if wanted.items() <= state.items()]

    def owner(self, slot: int) -> Node:
        """Return the server that says of itself that it owns the slot."""
        for node in self.primaries():
            for first, last, primary, *_ in node.ask("CLUSTER", "SLOTS"):
                if first <= slot <= last and primary[1] == node.port:
                    return node
        raise AssertionError(f"no server has slot {slot}")

    def begin_move(self, slot: int, target: Node) -> Node:
        """Begin to move the slot: its keys may be on either server from now on. Returns the old owner."""
        source = self.owner(slot)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        return source

    def move_keys(self, slot: int, source: Node, target: Node, most: int = 1000) -> int:
        """Move keys of the slot, at most `most`, and return how many were moved."""
        keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, most)
        if keys:
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def end_move(self, slot: int, target: Node) -> None:
        """Give the slot to its new owner, in the view of every server."""
        for node in [target, *(node for node in self.primaries() if node is not target)]:
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def close(self) -> None:
        """Kill all servers and remove their files."""
        for node in self.nodes + self.replicas:
            node.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


class ClusterStock:
    """Clusters for one test each: the next one starts while a test runs, since it takes two seconds to form.

    The thread that starts servers lives until `close`: they would die with it.
    """

    def __init__(self, *, node_timeout_ms: int) -> None:
        self._node_timeout_ms = node_timeout_ms
        self._thread = ThreadPoolExecutor(1)
        self._next: Future[RedisCluster] | None = None

    def take(self) -> RedisCluster:
        """Return a cluster that has formed; its user closes it."""
        taken = (self._next or self._thread.submit(self._started)).result()
        self._next = self._thread.submit(self._started)
        until(taken.whole, "the cluster has fallen apart")
        return taken

    def close(self) -> None:
        """Close the cluster that was not taken, if it could be started."""
        if self._next is not None and self._next.exception() is None:
            self._next.result().close()
        self._thread.shutdown()

    def _started(self) -> RedisCluster:
        cluster = RedisCluster(node_timeout_ms=self._node_timeout_ms)
        try:
            cluster.start()
        except BaseException:
            cluster.close()
            raise
        return cluster
