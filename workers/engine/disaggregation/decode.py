"""The side that takes: for each reserved prompt one pull, in a thread of a small pool.

    connect -> Ask -> wait for Manifest -> slab, checked, loaded -> slab ... -> done -> the answer goes on here

The store is written in the engine's thread only, so a request that is aborted in the middle frees its blocks at
once: the next slab finds nobody to be loaded for. Whatever else goes wrong, the prompt is computed here.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic

from torch import Tensor

from workers.engine.disaggregation.channel import blocks_per_slab, receiving
from workers.engine.disaggregation.handoff import HandoffFailed, PullState
from workers.engine.disaggregation.manifest import (
    Ask,
    Backend,
    Manifest,
    Slab,
    checksums,
    first_sampled,
    prompt_digest,
    receive_as,
    send_frame,
)
from workers.engine.engine import Engine
from workers.engine.errors import EngineError
from workers.engine.kv.kv_store import KVStore
from workers.engine.request import Bootstrap, Output, Request
from workers.engine.scheduler.sequence import Handoff, Sequence

_log = logging.getLogger("radixgate.engine")

PULLS_MAX = 8
CONNECT_SECONDS = 5.0

Call = Callable[[Callable[[], list[Output]]], Future[None]]
Connect = Callable[[str, int], socket.socket]


@dataclass(slots=True)
class Taken:
    """What became of all pulls so far; written in the engine's thread, the bytes by pulls under a lock."""

    pulled: int = 0
    recomputed: int = 0
    aborted: int = 0
    blocks: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """Spent between a peer's manifest and its last block."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Pull:
    sequence: Sequence
    bootstrap: Bootstrap
    state: PullState = PullState.RESERVING
    connection: socket.socket | None = None


def connect(host: str, port: int) -> socket.socket:
    """A connection to a prefill engine."""
    return socket.create_connection((host, port), timeout=CONNECT_SECONDS)


class DecodeSide:
    """The handoffs of a decode engine; see HandoffSide."""

    role: Handoff = "take"

    def __init__(
        self,
        engine: Engine,
        call: Call,
        *,
        fingerprint: str,
        backend: Backend = "tcp",
        wait_seconds: float = 30.0,
        connect: Connect = connect,
    ) -> None:
        """`call` has the engine's thread do something; `wait_seconds`: the longest silence of a peer."""
        if engine.store is None:
            raise HandoffFailed("an engine without a KV store takes no blocks")
        self.taken = Taken()
        self._engine = engine
        self._store: KVStore = engine.store
        self._call = call
        self._fingerprint = fingerprint
        self._backend = backend
        self._wait_seconds = wait_seconds
        self._connect = connect
        self._pulls: dict[str, _Pull] = {}
        self._counting = threading.Lock()
        self._workers = ThreadPoolExecutor(PULLS_MAX, thread_name_prefix="kv-pull")

    def states(self) -> dict[str, PullState]:
        """Where each pull stands, by request id."""
        return {name: pull.state for name, pull in list(self._pulls.items())}

    def close(self) -> None:
        """Break off everything."""
        for pull in list(self._pulls.values()):
            _hang_up(pull)
        self._workers.shutdown(wait=False, cancel_futures=True)

    def opened(self, request: Request, bootstrap: Bootstrap) -> None:
        """As promised by HandoffSide."""
        sequence = self._engine.sequence(request.id)
        if sequence:
            self._pulls[request.id] = _Pull(sequence=sequence, bootstrap=bootstrap)

    def reserved(self, sequence: Sequence) -> None:
        """As promised by HandoffSide."""
        if pull := self._pulls.get(sequence.id):
            pull.state = PullState.PULLING
            # The pool takes nothing more once the worker stops; then nobody waits for the answer either.
            with contextlib.suppress(RuntimeError):
                self._workers.submit(self._run, pull, self._ask(pull))

    def ended(self, sequence: Sequence) -> None:
        """As promised by HandoffSide: only who waits or pulls is still known here."""
        if pull := self._pulls.pop(sequence.id, None):
            self.taken.aborted += 1
            _hang_up(pull)

    # In the engine's thread

    def _ask(self, pull: _Pull) -> Ask:
        sequence, size = pull.sequence, self._store.block_size
        window = self._engine.info.window
        # What is behind the window is read by nobody, and may be gone on the other side.
        behind = 0 if window is None else max(0, sequence.num_prompt - window + 1)
        return Ask(
            room=pull.bootstrap.room,
            fingerprint=self._fingerprint,
            codec=self._store.codec.name,
            block_size=size,
            digest=prompt_digest(sequence.tokens, sequence.salt),
            first=max(sequence.num_computed, behind) // size,
            last=-(-sequence.num_prompt // size),
            backend=self._backend,
        )

    def _load(self, pull: _Pull, first: int, content: Tensor) -> list[Output]:
        if pull.sequence not in self._engine.scheduler.pulling:
            raise HandoffFailed("the request has ended")
        self._store.load(pull.sequence.blocks.ids[first : first + len(content)], content)
        return []

    def _go_on(self, pull: _Pull, manifest: Manifest | None) -> list[Output]:
        sequence = pull.sequence
        if sequence not in self._engine.scheduler.pulling:
            return []
        del self._pulls[sequence.id]
        if manifest is None:
            pull.state = PullState.RECOMPUTING
            self.taken.recomputed += 1
            return self._engine.resume(sequence, None)
        pull.state = PullState.RUNNING
        self.taken.pulled += 1
        sequence.seed = manifest.seed
        sequence.cached_tokens = manifest.cached_tokens
        return self._engine.resume(sequence, first_sampled(manifest))

    # In a thread of the pool

    def _run(self, pull: _Pull, ask: Ask) -> None:
        manifest: Manifest | None = None
        try:
            manifest = self._pull(pull, ask)
        except (EngineError, OSError) as err:
            if pull.sequence.finish is None:
                _log.warning("a prompt's KV did not come, it is computed here: %s", err)
        finally:
            # Even a bug must not leave a request between the two.
            with contextlib.suppress(EngineError):
                self._call(lambda: self._go_on(pull, manifest)).result()

    def _pull(self, pull: _Pull, ask: Ask) -> Manifest:
        with self._connect(pull.bootstrap.host, pull.bootstrap.port) as connection:
            pull.connection = connection
            connection.settimeout(self._wait_seconds)
            if pull.sequence.finish:
                raise HandoffFailed("the request has ended")
            send_frame(connection, ask)
            manifest = receive_as(connection, Manifest)
            self._check(pull, manifest)
            began = monotonic()
            size = manifest.bytes_per_block
            step = blocks_per_slab(size)
            with receiving(connection, ask.backend, size) as receiver:
                for first in range(ask.first, ask.last, step):
                    blocks = min(step, ask.last - first)
                    slab = receive_as(connection, Slab)
                    content = receiver.receive(blocks)
                    if (slab.first, slab.checksums) != (first, checksums(content)):
                        raise HandoffFailed("a block came damaged")
                    self._call(lambda first=first, content=content: self._load(pull, first, content)).result()  # type: ignore[misc]
                    with self._counting:
                        self.taken.blocks += blocks
                        self.taken.bytes += content.nbytes
                send_frame(connection, {"done": True})
            with self._counting:
                self.taken.seconds += monotonic() - began
            return manifest

    def _check(self, pull: _Pull, manifest: Manifest) -> None:
        vocabulary = self._engine.info.vocab_size
        if manifest.bytes_per_block != self._store.bytes_per_block:
            raise HandoffFailed("the blocks of the two engines differ in size")
        if manifest.num_tokens != pull.sequence.num_prompt or not 0 <= manifest.first_token < vocabulary:
            raise HandoffFailed("the manifest is of another prompt")


def _hang_up(pull: _Pull) -> None:
    if pull.connection:
        with contextlib.suppress(OSError):
            pull.connection.shutdown(socket.SHUT_RDWR)
