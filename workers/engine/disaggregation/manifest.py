"""What the two sides of a handoff say to each other, as JSON in frames of four bytes of length and a body.

    decode  -> prefill    Ask         which room, for which prompt, and the first block that is missing
    prefill -> decode     Manifest    the first token and how to go on; or {"refused": reason}
    ...                   Slab        before each run of blocks: which, with a checksum of each
    decode  -> prefill    {"done": true}

Both sides must be the same model, in the same layout, over the same prompt: a digest over its tokens and salt says
so. A block whose checksum is wrong is never read.
"""

import hashlib
import json
import socket
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from struct import pack
from typing import Any, Literal, TypeVar

from torch import Tensor

from workers.engine.disaggregation.handoff import HandoffFailed
from workers.engine.sampling.logprobs import TokenLogprob
from workers.engine.scheduler.plan import Sampled

Backend = Literal["tcp", "shm"]
FRAME_BYTES_MAX = 1 << 20
_SAMPLE_BYTES = 1 << 16

Said = TypeVar("Said")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What the decode side wants: blocks `first` to `last` of a prompt, the last one not included."""

    room: int
    fingerprint: str
    codec: str
    block_size: int
    digest: str
    first: int
    last: int
    backend: Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What the prefill side has: how to go on after `num_tokens`."""

    num_tokens: int
    first_token: int
    logprob: float | None
    """Of the first token, if the request asks for it, and of the likeliest ones in its place."""
    top_logprobs: tuple[tuple[int, float], ...]
    seed: int
    """With the position it determines every number drawn, so the answer goes on as it would have here."""
    cached_tokens: int
    bytes_per_block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slab:
    """A run of blocks from position `first`, and a CRC-32 of each."""

    first: int
    checksums: tuple[int, ...]


def first_sampled(manifest: Manifest) -> Sampled:
    """The first token as the prefill side sampled it."""
    token, logprob = manifest.first_token, manifest.logprob
    if logprob is None:
        return Sampled(tokens=(token,))
    known = TokenLogprob(token=token, logprob=logprob, top=manifest.top_logprobs)
    return Sampled(tokens=(token,), logprobs=(known,))


def prompt_digest(tokens: Sequence[int], salt: str) -> str:
    """Names a prompt of one tenant."""
    return hashlib.sha256(salt.encode() + b"\0" + pack(f"<{len(tokens)}I", *tokens)).hexdigest()


def fingerprint(model: Path, *, quantization: str, dtype: str) -> str:
    """Names what computes: how its weights are held, and of which checkpoint.

    Of that its config, and of each weight file the size, the beginning and the end.
    """
    found = hashlib.sha256(f"{quantization} {dtype} ".encode() + (model / "config.json").read_bytes())
    for path in sorted(model.glob("*.safetensors")):
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_SAMPLE_BYTES)
            file.seek(max(0, size - _SAMPLE_BYTES))
            found.update(f"{path.name} {size} ".encode() + head + file.read(_SAMPLE_BYTES))
    return found.hexdigest()


def checksums(content: Tensor) -> tuple[int, ...]:
    """A CRC-32 of each row of `content` [blocks, bytes]."""
    rows = content.numpy()
    return tuple(zlib.crc32(rows[index]) for index in range(len(rows)))


def send_frame(connection: socket.socket, value: object) -> None:
    """One JSON value; dataclasses as objects."""
    known = asdict(value) if hasattr(value, "__dataclass_fields__") else value  # type: ignore[call-overload]
    body = json.dumps(known).encode()
    connection.sendall(len(body).to_bytes(4, "big") + body)


def receive_frame(connection: socket.socket) -> dict[str, Any]:
    """One JSON object; HandoffFailed when the peer has left, refused, or sends anything else."""
    size = int.from_bytes(receive_exactly(connection, 4), "big")
    if size > FRAME_BYTES_MAX:
        raise HandoffFailed(f"a frame of {size} bytes is more than {FRAME_BYTES_MAX}")
    try:
        value = json.loads(receive_exactly(connection, size))
    except ValueError as err:
        raise HandoffFailed("the peer sent no JSON") from err
    if not isinstance(value, dict):
        raise HandoffFailed("the peer sent no object")
    if "refused" in value:
        raise HandoffFailed(str(value["refused"]))
    return value


def receive_as(connection: socket.socket, kind: type[Said]) -> Said:
    """One frame, typed."""
    value = receive_frame(connection)
    try:
        if kind is Slab:
            value["checksums"] = tuple(int(number) for number in value["checksums"])
        if kind is Manifest:
            value["top_logprobs"] = tuple(
                (int(token), float(number)) for token, number in value["top_logprobs"]
            )
        return kind(**value)
    except (TypeError, KeyError, ValueError) as err:
        raise HandoffFailed(f"the peer sent no {kind.__name__}") from err


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes; HandoffFailed when the connection ends before."""
    buffer = bytearray(size)
    receive_into(connection, memoryview(buffer))
    return bytes(buffer)


def receive_into(connection: socket.socket, view: memoryview) -> None:
    """Fill `view`; HandoffFailed when the connection ends before."""
    while view:
        got = connection.recv_into(view)
        if not got:
            raise HandoffFailed("the peer has left")
        view = view[got:]
