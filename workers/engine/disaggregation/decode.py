"""The decode side of a handoff: it pulls the blocks of each reserved prompt, in a thread of a small pool.

    connect -> BlockRequest -> wait for Manifest -> slab, checked, loaded -> slab ... -> done -> decode here

Only the engine's thread writes the store, so a request that is aborted in the middle frees its blocks at once, and
the next slab is refused because its request has ended. After any other failure the prompt is computed here.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import monotonic

from torch import Tensor

from workers.engine.disaggregation.channel import blocks_per_slab, open_receiver
from workers.engine.disaggregation.handoff import HandoffFailed, PullState
from workers.engine.disaggregation.messages import (
    Backend,
    BlockRequest,
    Manifest,
    Slab,
    checksums,
    first_token_of,
    prompt_digest,
    receive_as,
    send_frame,
)
from workers.engine.engine import Engine
from workers.engine.errors import EngineError
from workers.engine.kv.kv_store import KVStore
from workers.engine.request import Bootstrap, Output, Request
from workers.engine.scheduler.sequence import HandoffRole, Sequence

_log = logging.getLogger("radixgate.engine")

PULLS_MAX = 8
"""Pulls at the same time."""
CONNECT_SECONDS = 5.0

EngineCall = Callable[[Callable[[], list[Output]]], Future[None]]
"""Runs a function in the engine's thread, and returns the future of its end."""
ConnectFunction = Callable[[str, int], socket.socket]
"""Connects to a prefill engine at a host and port."""


@dataclass(slots=True)
class PullCounters:
    """Counts of handoffs on the decode side.

    The engine's thread writes the first three; the pulling threads write the others, under a lock.
    """

    pulled: int = 0
    """Prompts received."""
    recomputed: int = 0
    """Prompts computed here because their handoff failed."""
    aborted: int = 0
    """Requests that ended before their prompt was received."""
    blocks: int = 0
    """Blocks received."""
    bytes: int = 0
    """Bytes received."""
    seconds: float = 0.0
    """Time between the manifests and the last blocks of all pulls."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Pull:
    sequence: Sequence
    bootstrap: Bootstrap
    state: PullState = PullState.RESERVING
    connection: socket.socket | None = None


def connect(host: str, port: int) -> socket.socket:
    """Return a connection to a prefill engine."""
    return socket.create_connection((host, port), timeout=CONNECT_SECONDS)


class DecodeSide:
    """The decode engine's HandoffSide: it pulls the blocks of prompts that another engine computes."""

    role: HandoffRole = "decode"

    def __init__(
        self,
        engine: Engine,
        call_engine: EngineCall,
        *,
        fingerprint: str,
        backend: Backend = "tcp",
        wait_seconds: float = 30.0,
        connect: ConnectFunction = connect,
    ) -> None:
        """Start without pulls.

        Args:
            engine: The decode engine.
            call_engine: Runs a function in the engine's thread.
            fingerprint: Names the model; the peer must have the same.
            backend: How blocks travel.
            wait_seconds: The longest time between two messages of a peer.
            connect: Connects to a prefill engine.
        """
        if engine.store is None:
            raise HandoffFailed("an engine without a KV store cannot receive blocks")
        self.counters = PullCounters()
        self._engine = engine
        self._store: KVStore = engine.store
        self._call_engine = call_engine
        self._fingerprint = fingerprint
        self._backend = backend
        self._wait_seconds = wait_seconds
        self._connect = connect
        self._pulls: dict[str, _Pull] = {}
        self._counting = threading.Lock()
        self._threads = ThreadPoolExecutor(PULLS_MAX, thread_name_prefix="kv-pull")

    def states(self) -> dict[str, PullState]:
        """Return the state of each pull by request id."""
        return {name: pull.state for name, pull in list(self._pulls.items())}

    def close(self) -> None:
        """Abort all pulls."""
        for pull in list(self._pulls.values()):
            _close_connection(pull)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def on_submit(self, request: Request, bootstrap: Bootstrap) -> None:
        """Note the address that the request's prompt is pulled from."""
        sequence = self._engine.sequence(request.id)
        if sequence:
            self._pulls[request.id] = _Pull(sequence=sequence, bootstrap=bootstrap)

    def on_reserved(self, sequence: Sequence) -> None:
        """Begin to pull the prompt of a sequence that has its blocks now."""
        if pull := self._pulls.get(sequence.id):
            pull.state = PullState.PULLING
            # The pool accepts no more work once the worker stops; then no client waits for the answer either.
            with contextlib.suppress(RuntimeError):
                self._threads.submit(self._run, pull, self._request(pull))

    def on_finished(self, sequence: Sequence) -> None:
        """Abort the pull of a sequence that ended before its prompt was received."""
        if pull := self._pulls.pop(sequence.id, None):
            self.counters.aborted += 1
            _close_connection(pull)

    # In the engine's thread

    def _request(self, pull: _Pull) -> BlockRequest:
        sequence, size = pull.sequence, self._store.block_size
        window = self._engine.info.window
        # Tokens before the attention window are never read, and the other side may have freed their blocks.
        before_window = 0 if window is None else max(0, sequence.num_prompt - window + 1)
        return BlockRequest(
            room=pull.bootstrap.room,
            fingerprint=self._fingerprint,
            codec=self._store.codec.name,
            block_size=size,
            digest=prompt_digest(sequence.tokens, sequence.salt),
            first=max(sequence.num_computed, before_window) // size,
            last=-(-sequence.num_prompt // size),
            backend=self._backend,
        )

    def _load(self, pull: _Pull, first: int, content: Tensor) -> list[Output]:
        if pull.sequence not in self._engine.scheduler.receiving:
            raise HandoffFailed("the request has ended")
        self._store.load(pull.sequence.blocks.ids[first : first + len(content)], content)
        return []

    def _resume(self, pull: _Pull, manifest: Manifest | None) -> list[Output]:
        sequence = pull.sequence
        if sequence not in self._engine.scheduler.receiving:
            return []
        del self._pulls[sequence.id]
        if manifest is None:
            pull.state = PullState.RECOMPUTING
            self.counters.recomputed += 1
            return self._engine.resume(sequence, None)
        pull.state = PullState.RUNNING
        self.counters.pulled += 1
        sequence.seed = manifest.seed
        sequence.cached_tokens = manifest.cached_tokens
        return self._engine.resume(sequence, first_token_of(manifest))

    # In a thread of the pool

    def _run(self, pull: _Pull, request: BlockRequest) -> None:
        manifest: Manifest | None = None
        try:
            manifest = self._pull(pull, request)
        except (EngineError, OSError) as err:
            if pull.sequence.finish is None:
                _log.warning(
                    "the handoff of a prompt failed, so this engine computes the prompt itself: %s", err
                )
        finally:
            # Even a bug must not leave a request waiting for ever.
            with contextlib.suppress(EngineError):
                self._call_engine(lambda: self._resume(pull, manifest)).result()

    def _pull(self, pull: _Pull, request: BlockRequest) -> Manifest:
        with self._connect(pull.bootstrap.host, pull.bootstrap.port) as connection:
            pull.connection = connection
            connection.settimeout(self._wait_seconds)
            if pull.sequence.finish:
                raise HandoffFailed("the request has ended")
            send_frame(connection, request)
            manifest = receive_as(connection, Manifest)
            self._check(pull, manifest)
            began = monotonic()
            size = manifest.bytes_per_block
            step = blocks_per_slab(size)
            with open_receiver(connection, request.backend, size) as receiver:
                for first in range(request.first, request.last, step):
                    blocks = min(step, request.last - first)
                    slab = receive_as(connection, Slab)
                    content = receiver.receive(blocks)
                    if (slab.first, slab.checksums) != (first, checksums(content)):
                        raise HandoffFailed("a block was damaged on its way")
                    self._call_engine(partial(self._load, pull, first, content)).result()
                    with self._counting:
                        self.counters.blocks += blocks
                        self.counters.bytes += content.nbytes
                send_frame(connection, {"done": True})
            with self._counting:
                self.counters.seconds += monotonic() - began
            return manifest

    def _check(self, pull: _Pull, manifest: Manifest) -> None:
        vocabulary = self._engine.info.vocab_size
        if manifest.bytes_per_block != self._store.bytes_per_block:
            raise HandoffFailed("the blocks of the two engines differ in size")
        if manifest.num_tokens != pull.sequence.num_prompt or not 0 <= manifest.first_token < vocabulary:
            raise HandoffFailed("the manifest is for another prompt")


def _close_connection(pull: _Pull) -> None:
    if pull.connection:
        with contextlib.suppress(OSError):
            pull.connection.shutdown(socket.SHUT_RDWR)
