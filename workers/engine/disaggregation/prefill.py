"""The prefill side of a handoff: a thread accepts peers, and a thread for each peer sends the requested blocks.

The engine's thread only marks prompts as ready and frees blocks; it never waits for a peer. Blocks on lease are not
written, so a sender reads them while the engine computes further steps.
"""

import contextlib
import logging
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from workers.engine.disaggregation.channel import blocks_per_slab, open_sender
from workers.engine.disaggregation.handoff import HandoffFailed, HandoffLease, HandoffLeases, HeldPrompt
from workers.engine.disaggregation.messages import (
    BlockRequest,
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
from workers.engine.scheduler.plan import SampledTokens
from workers.engine.scheduler.sequence import HandoffRole, Sequence

_log = logging.getLogger("radixgate.engine")

PEERS_MAX = 64
"""Most peers at once; further connections are closed."""
SWEEP_SECONDS = 0.5
"""How often expired leases are aborted."""

FaultHook = Callable[[str], None]
"""For tests: called at every stage with the stage's name; it may raise or close connections."""


def _no_fault(_stage: str) -> None:
    pass


@dataclass(slots=True)
class SendCounters:
    """Counts of handoffs on the prefill side; every sending thread writes them, under a lock."""

    handoffs: int = 0
    """Completed handoffs."""
    failed: int = 0
    """Handoffs that failed while blocks were sent."""
    blocks: int = 0
    """Blocks sent."""
    bytes: int = 0
    """Bytes sent."""


class PrefillServer:
    """Listens for decode engines, and sends them the blocks on lease."""

    def __init__(
        self,
        store: KVStore,
        leases: HandoffLeases,
        *,
        fingerprint: str,
        peer_seconds: float = 30.0,
        fault: FaultHook = _no_fault,
    ) -> None:
        """Create a server that does not listen yet.

        Args:
            store: The KV store to read blocks from.
            leases: The rooms of the engine.
            fingerprint: Names the model; a peer must send the same.
            peer_seconds: The longest wait of a peer for its room, and the longest time between two of its messages.
            fault: A hook for tests.
        """
        self.counters = SendCounters()
        self._store = store
        self._leases = leases
        self._fingerprint = fingerprint
        self._peer_seconds = peer_seconds
        self._fault = fault
        self._peer_slots = threading.BoundedSemaphore(PEERS_MAX)
        self._counting = threading.Lock()
        self._listener: socket.socket | None = None
        self._stopping = threading.Event()
        self._peers: set[socket.socket] = set()

    def listen(self, host: str, port: int) -> int:
        """Accept peers from now on, and return the port.

        The system chooses a port for 0. Raises OSError if the port is taken.
        """
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((host, port), family=family, backlog=PEERS_MAX)
        self._listener.settimeout(SWEEP_SECONDS)
        threading.Thread(target=self._accept, name="kv-handoff", daemon=True).start()
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop listening, and close the connections to all peers."""
        self._stopping.set()
        if self._listener:
            self._listener.close()
        for peer in list(self._peers):
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def serve(self, connection: socket.socket) -> None:
        """Serve one peer, from its request to its confirmation, and close the connection."""
        self._peers.add(connection)
        try:
            with connection:
                connection.settimeout(self._peer_seconds)
                self._answer(connection)
        except (HandoffFailed, OSError) as err:
            _log.info("a handoff of KV blocks failed: %s", err)
        finally:
            self._peers.discard(connection)

    def _accept(self) -> None:
        listener = self._listener
        while listener and not self._stopping.is_set():
            self._leases.abort_expired()
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if not self._peer_slots.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve_and_release_slot, args=(connection,), daemon=True).start()

    def _serve_and_release_slot(self, connection: socket.socket) -> None:
        try:
            self.serve(connection)
        finally:
            self._peer_slots.release()

    def _answer(self, connection: socket.socket) -> None:
        request = receive_as(connection, BlockRequest)
        self._fault("asked")
        try:
            lease = self._lease_for(request, connection)
        except HandoffFailed as err:
            send_frame(connection, {"refused": str(err)})
            raise
        try:
            self._send(connection, request, lease)
        except BaseException as err:
            self._leases.abort(lease.room, f"the transfer broke off: {err}", lease)
            with self._counting:
                self.counters.failed += 1
            raise
        self._leases.mark_sent(lease)

    def _lease_for(self, request: BlockRequest, connection: socket.socket) -> HandoffLease:
        own = (self._fingerprint, self._store.codec.name, self._store.block_size)
        if own != (request.fingerprint, request.codec, request.block_size):
            raise HandoffFailed("the two engines differ in model, KV type or block size")
        lease = self._leases.start_sending(request.room, self._peer_seconds, lambda: _has_left(connection))
        prompt = lease.prompt
        wrong = prompt is None or prompt.digest != request.digest
        if wrong or not 0 <= request.first <= request.last <= len(_prompt_of(lease).blocks):
            self._leases.abort(lease.room, "the peer requested another prompt", lease)
            raise HandoffFailed("the room holds another prompt")
        return lease

    def _send(self, connection: socket.socket, request: BlockRequest, lease: HandoffLease) -> None:
        prompt, size = _prompt_of(lease), self._store.bytes_per_block
        self._fault("ready")
        logprob = next(iter(prompt.first.logprobs), None)
        send_frame(
            connection,
            Manifest(
                num_tokens=prompt.num_tokens,
                first_token=prompt.first.tokens[0],
                logprob=logprob.logprob if logprob else None,
                top_logprobs=logprob.top if logprob else (),
                seed=prompt.seed,
                cached_tokens=prompt.cached_tokens,
                bytes_per_block=size,
            ),
        )
        step = blocks_per_slab(size)
        with open_sender(connection, request.backend, size) as sender:
            for first in range(request.first, request.last, step):
                blocks = prompt.blocks[first : min(first + step, request.last)]
                content = self._store.export(blocks, sender.next_buffer(len(blocks)))
                send_frame(connection, Slab(first=first, checksums=checksums(content)))
                self._fault("slab")
                sender.send(content)
                with self._counting:
                    self.counters.blocks += len(blocks)
                    self.counters.bytes += content.nbytes
            sender.finish()
            self._fault("sent")
            receive_frame(connection)
        with self._counting:
            self.counters.handoffs += 1


def _prompt_of(lease: HandoffLease) -> HeldPrompt:
    if lease.prompt is None:
        raise HandoffFailed("the room is empty")
    return lease.prompt


def _has_left(connection: socket.socket) -> bool:
    """Return whether the peer has closed the connection; it sends nothing between its request and the answer."""
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable)


class PrefillSide:
    """The prefill engine's HandoffSide: it opens rooms, and puts computed prompts on lease."""

    role: HandoffRole = "prefill"

    def __init__(self, engine: Engine, leases: HandoffLeases) -> None:
        self._engine = engine
        self._leases = leases
        self._rooms: dict[str, int] = {}

    def on_submit(self, request: Request, bootstrap: Bootstrap) -> None:
        """Open the request's room. Raises RequestRefused if the room is taken."""
        try:
            self._leases.open(bootstrap.room, request.id)
        except HandoffFailed as err:
            raise RequestRefused(str(err), param="bootstrap_room") from err
        self._rooms[request.id] = bootstrap.room

    def on_reserved(self, sequence: Sequence) -> None:
        """Do nothing: a prefill engine receives no blocks."""

    def on_finished(self, sequence: Sequence) -> None:
        """Put the blocks of a computed prompt on lease, or abort the room of a prompt that was not computed."""
        room = self._rooms.pop(sequence.id)
        table = self._engine.scheduler.held_for_handoff.get(sequence.id)
        if table is None:
            self._leases.abort(room, f"the prefill ended with {sequence.finish}")
            return
        prompt = sequence.tokens[: sequence.num_prompt]
        self._leases.mark_ready(
            room,
            HeldPrompt(
                request_id=sequence.id,
                blocks=tuple(table.ids[: -(-len(prompt) // self._engine.info.block_size)]),
                num_tokens=len(prompt),
                digest=prompt_digest(prompt, sequence.salt),
                first=SampledTokens(
                    tokens=(sequence.tokens[sequence.num_prompt],), logprobs=tuple(sequence.logprobs)
                ),
                seed=sequence.seed,
                cached_tokens=sequence.cached_tokens or 0,
            ),
        )
