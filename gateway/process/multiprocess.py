"""`listen.processes`: several gateway processes on one machine, on one port, under one supervising process.

    supervisor    embedded Valkey; starts the processes, restarts the ones that die, passes signals on
      +- 0        starts alone, so that tables and secrets are made once; also serves the operators' listener
      +- 1, 2...  the same port (SO_REUSEPORT: the kernel spreads connections); their metrics on a unix socket

The processes work like gateways on several machines: they share one index, one queue and one set of quota counters
in Redis. Only process 0 follows the index and keeps a copy of it, which the others read in shared memory
(radix_cache/machine). While process 0 is down, the others continue with the last state of the copy.
"""

import asyncio
import logging
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from gateway.process.children import Child, ChildFailed
from gateway.process.embedded_valkey import EmbeddedValkey
from gateway.process.secrets import deployment_secret
from gateway.settings.tree import Settings
from radix_cache.machine.segment import IndexMemory, create_segments

log = logging.getLogger(__name__)

READY = re.compile(r"^radixgate ready at (\S+)")
READY_SECONDS_MAX = 180.0
MARGIN_SECONDS = 15.0
"""Time that a process may need to stop, beyond its notice and its drain."""

PREFIX = "radixgate-processes-"

SEGMENT_SHARE = 0.75
"""The part of the index's memory that each segment of shared memory has: blocks take 10 of 16 bytes there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayProcess:
    """The identity of this process among several gateway processes."""

    number: int
    """From 0 to `count` - 1."""

    count: int
    """How many processes there are."""

    directory: Path
    """Where the unix sockets of the processes are."""

    index_segments: Sequence[int] = ()
    """Descriptors of the shared memory with the prefix index; none where every process has its own copy."""

    def admin_socket(self, number: int) -> Path:
        """Return the path of the unix socket on which that process serves its metrics."""
        return self.directory / f"admin-{number}"

    @property
    def index_memory(self) -> IndexMemory | None:
        """The memory in which this process and the others have one copy of the prefix index."""
        if not self.index_segments:
            return None
        return IndexMemory(
            descriptors=self.index_segments,
            writes=self.number == 0,
            corrections=self.directory / "index-corrections",
        )


async def run(
    settings: Settings,
    options: Sequence[str],
    on_ready: Callable[[str], None],
    registered: Callable[[Path], AbstractContextManager[None]],
) -> None:
    """Start all gateway processes and supervise them until SIGTERM or SIGINT; a second signal stops them at once.

    `options` are the command-line options of `radixgate serve`, passed on to each process. `on_ready` is called
    with the URL once all processes serve. `registered` is given the state directory and entered while they serve,
    so that `radixgate reload` finds this process.

    Raises SettingsProblem, ValkeyFailed and ChildFailed before the processes serve.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def pass_on(number: signal.Signals) -> None:
        if number is not signal.SIGHUP:
            stop.set()
        for child in children:
            child.signal(number)

    children: list[Child] = []
    async with AsyncExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        arguments = [*options, "--process-directory", str(directory)]
        deployment_secret(settings)
        port = stack.enter_context(_reserved(settings.listen.host, settings.listen.port))
        arguments += ["--set", f"listen.port={port.getsockname()[1]}"]
        if settings.redis.url == "embedded":
            arguments += ["--set", f"redis.url={await _embedded_valkey(settings, stack)}"]
        for wanted in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(wanted, pass_on, wanted)
        segments = create_segments(int(settings.index.memory_bytes_max * SEGMENT_SHARE))
        for segment in segments:
            stack.callback(os.close, segment)
        if segments:
            arguments += ["--process-index", ",".join(map(str, segments))]
        children += (
            _child(number, settings, arguments, segments) for number in range(settings.listen.processes)
        )
        stack.push_async_callback(_stop_all, children)
        url = await children[0].start(READY_SECONDS_MAX)
        await asyncio.gather(*(child.start(READY_SECONDS_MAX) for child in children[1:]))
        stack.enter_context(registered(Path(settings.state_directory)))
        on_ready(url)
        keeping = [asyncio.create_task(child.restart_when_dead(READY_SECONDS_MAX)) for child in children]
        await stop.wait()
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)


async def _embedded_valkey(settings: Settings, stack: AsyncExitStack) -> str:
    """Keep the embedded Valkey running until the stack closes, and return its URL. Raises ValkeyFailed."""
    valkey = EmbeddedValkey(Path(settings.state_directory))
    stack.push_async_callback(valkey.close)
    await valkey.start()
    keeping = asyncio.create_task(valkey.run())
    stack.callback(keeping.cancel)
    return valkey.url


def _child(number: int, settings: Settings, arguments: Sequence[str], segments: Sequence[int]) -> Child:
    """Return gateway process `number`, not started yet; it inherits the descriptors of the shared memory."""
    process = f"{number}/{settings.listen.processes}"
    command = [sys.executable, "-P", "-m", "gateway", "serve", *arguments, "--process", process]
    drain = settings.drain
    return Child(
        f"process {number}",
        lambda _: command,
        READY,
        None,
        stop_seconds=drain.notice_seconds + drain.seconds + MARGIN_SECONDS,
        descriptors=segments,
    )


async def _stop_all(children: Sequence[Child]) -> None:
    await asyncio.gather(*(child.stop() for child in children))


def _reserved(host: str, port: int) -> socket.socket:
    """Return a socket that is bound but never listened on, so that the port stays reserved while processes restart.

    Raises ChildFailed.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        reserved = socket.socket(family, kind, protocol)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(address)
    except OSError as err:
        raise ChildFailed(f"cannot listen on {host}:{port}: {os.strerror(err.errno or 0)}") from err
    return reserved
