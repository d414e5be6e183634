"""The side that gives: a thread listens, and one thread for each peer sends the blocks it asks for.

The engine's thread only says "ready" and frees; it never waits for a peer. Blocks on lease are not written by
anybody, so a sender reads them while the engine goes on.
"""

import contextlib
import logging
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from workers.engine.disaggregation.channel import blocks_per_slab, sending
from workers.engine.disaggregation.handoff import HandoffFailed, Holding, Lease, Leases
from workers.engine.disaggregation.manifest import (
    Ask,
    Manifest,
    Slab,
    checksums,
    prompt_digest,
    receive_as,
    receive_frame,
    send_frame,
)
from workers.engine.engine import Engine
from workers.engine.errors import RequestRefused
from workers.engine.kv.kv_store import KVStore
from workers.engine.request import Bootstrap, Request
from workers.engine.scheduler.plan import Sampled
from workers.engine.scheduler.sequence import Handoff, Sequence

_log = logging.getLogger("radixgate.engine")

PEERS_MAX = 64
SWEEP_SECONDS = 0.5

Fault = Callable[[str], None]
"""For tests: called at every stage with its name, and may raise or hang up."""


def _no_fault(_stage: str) -> None:
    pass


@dataclass(slots=True)
class Given:
    """What was sent so far; each number is written by any sender, under a lock."""

    handoffs: int = 0
    failed: int = 0
    blocks: int = 0
    bytes: int = 0


class PrefillServer:
    """Serves the leases of one engine."""

    def __init__(
        self,
        store: KVStore,
        leases: Leases,
        *,
        fingerprint: str,
        peer_seconds: float = 30.0,
        fault: Fault = _no_fault,
    ) -> None:
        """`peer_seconds`: how long a peer may wait for its room, and how long it may be silent."""
        self.given = Given()
        self._store = store
        self._leases = leases
        self._fingerprint = fingerprint
        self._peer_seconds = peer_seconds
        self._fault = fault
        self._places = threading.BoundedSemaphore(PEERS_MAX)
        self._counting = threading.Lock()
        self._listener: socket.socket | None = None
        self._stopping = threading.Event()
        self._peers: set[socket.socket] = set()

    def listen(self, host: str, port: int) -> int:
        """Accept peers from now on; the port, which 0 lets the system choose. OSError if it is taken."""
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((host, port), family=family, backlog=PEERS_MAX)
        self._listener.settimeout(SWEEP_SECONDS)
        threading.Thread(target=self._accept, name="kv-handoff", daemon=True).start()
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Hang up on everybody."""
        self._stopping.set()
        if self._listener:
            self._listener.close()
        for peer in list(self._peers):
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def serve(self, connection: socket.socket) -> None:
        """One peer, from its question to its thanks; always closes the connection."""
        self._peers.add(connection)
        try:
            with connection:
                connection.settimeout(self._peer_seconds)
                self._answer(connection)
        except (HandoffFailed, OSError) as err:
            _log.info("a KV handoff failed: %s", err)
        finally:
            self._peers.discard(connection)

    def _accept(self) -> None:
        listener = self._listener
        while listener and not self._stopping.is_set():
            self._leases.sweep()
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve_in_place, args=(connection,), daemon=True).start()

    def _serve_in_place(self, connection: socket.socket) -> None:
        try:
            self.serve(connection)
        finally:
            self._places.release()

    def _answer(self, connection: socket.socket) -> None:
        ask = receive_as(connection, Ask)
        self._fault("asked")
        try:
            lease = self._take(ask, connection)
        except HandoffFailed as err:
            send_frame(connection, {"refused": str(err)})
            raise
        try:
            self._send(connection, ask, lease)
        except BaseException as err:
            self._leases.abort(lease.room, f"the transfer broke off: {err}", lease)
            with self._counting:
                self.given.failed += 1
            raise
        self._leases.sent(lease)

    def _take(self, ask: Ask, connection: socket.socket) -> Lease:
        mine = (self._fingerprint, self._store.codec.name, self._store.block_size)
        if mine != (ask.fingerprint, ask.codec, ask.block_size):
            raise HandoffFailed("the two engines differ in model, KV type or block size")
        lease = self._leases.take(ask.room, self._peer_seconds, lambda: _has_left(connection))
        holding = lease.holding
        wrong = holding is None or holding.digest != ask.digest
        if wrong or not 0 <= ask.first <= ask.last <= len(_held(lease).blocks):
            self._leases.abort(lease.room, "the peer asked for another prompt", lease)
            raise HandoffFailed("the room holds another prompt")
        return lease

    def _send(self, connection: socket.socket, ask: Ask, lease: Lease) -> None:
        holding, size = _held(lease), self._store.bytes_per_block
        self._fault("ready")
        known = next(iter(holding.first.logprobs), None)
        send_frame(
            connection,
            Manifest(
                num_tokens=holding.num_tokens,
                first_token=holding.first.tokens[0],
                logprob=known.logprob if known else None,
                top_logprobs=known.top if known else (),
                seed=holding.seed,
                cached_tokens=holding.cached_tokens,
                bytes_per_block=size,
            ),
        )
        step = blocks_per_slab(size)
        with sending(connection, ask.backend, size) as sender:
            for first in range(ask.first, ask.last, step):
                blocks = holding.blocks[first : min(first + step, ask.last)]
                content = self._store.export(blocks, sender.room(len(blocks)))
                send_frame(connection, Slab(first=first, checksums=checksums(content)))
                self._fault("slab")
                sender.send(content)
                with self._counting:
                    self.given.blocks += len(blocks)
                    self.given.bytes += content.nbytes
            sender.finish()
            self._fault("sent")
            receive_frame(connection)
        with self._counting:
            self.given.handoffs += 1


def _held(lease: Lease) -> Holding:
    if lease.holding is None:
        raise HandoffFailed("the room is empty")
    return lease.holding


def _has_left(connection: socket.socket) -> bool:
    """Has the peer hung up? It says nothing between its question and our answer."""
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable)


class PrefillSide:
    """The handoffs of a prefill engine; see HandoffSide."""

    role: Handoff = "give"

    def __init__(self, engine: Engine, leases: Leases) -> None:
        self._engine = engine
        self._leases = leases
        self._rooms: dict[str, int] = {}

    def opened(self, request: Request, bootstrap: Bootstrap) -> None:
        """As promised by HandoffSide."""
        try:
            self._leases.open(bootstrap.room, request.id)
        except HandoffFailed as err:
            raise RequestRefused(str(err), param="bootstrap_room") from err
        self._rooms[request.id] = bootstrap.room

    def reserved(self, sequence: Sequence) -> None:
        """As promised by HandoffSide: nobody is filled from elsewhere here."""

    def ended(self, sequence: Sequence) -> None:
        """As promised by HandoffSide."""
        room = self._rooms.pop(sequence.id)
        table = self._engine.scheduler.held.get(sequence.id)
        if table is None:
            self._leases.abort(room, f"the prefill ended with {sequence.finish}")
            return
        prompt = sequence.tokens[: sequence.num_prompt]
        self._leases.ready(
            room,
            Holding(
                request_id=sequence.id,
                blocks=tuple(table.ids[: -(-len(prompt) // self._engine.info.block_size)]),
                num_tokens=len(prompt),
                digest=prompt_digest(prompt, sequence.salt),
                first=Sampled(
                    tokens=(sequence.tokens[sequence.num_prompt],), logprobs=tuple(sequence.logprobs)
                ),
                seed=sequence.seed,
                cached_tokens=sequence.cached_tokens or 0,
            ),
        )
