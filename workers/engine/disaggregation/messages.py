"""The messages of a KV handoff between two engines: JSON in frames of four bytes of length and a body.

    decode  -> prefill    BlockRequest    which room, for which prompt, and the first block that is missing
    prefill -> decode     Manifest        the first token and how to continue; or {"refused": reason}
    ...                   Slab            before each run of blocks: its position, and a checksum of each block
    decode  -> prefill    {"done": true}

Both sides must run the same model, in the same layout, over the same prompt: a fingerprint and a digest over the
prompt's tokens and salt ensure it. A block with a wrong checksum is never used.
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
from workers.engine.scheduler.plan import SampledTokens

Backend = Literal["tcp", "shm"]
FRAME_BYTES_MAX = 1 << 20
"""Largest body of a frame."""
_SAMPLE_BYTES = 1 << 16
"""Bytes at the beginning and the end of a weight file that enter its fingerprint."""

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest:
    """The decode side's request for the blocks of a prompt."""

    room: int
    fingerprint: str
    """Names the model and how its weights are held; see `fingerprint`."""
    codec: str
    """How keys and values are stored."""
    block_size: int
    digest: str
    """Names the prompt; see `prompt_digest`."""
    first: int
    """The position of the first block wanted."""
    last: int
    """The position behind the last block wanted."""
    backend: Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The prefill side's answer: how to continue the prompt."""

    num_tokens: int
    """Tokens of the prompt."""
    first_token: int
    """The first token of the answer."""
    logprob: float | None
    """The log probability of the first token, if the request has them on."""
    top_logprobs: tuple[tuple[int, float], ...]
    """The most likely tokens in the first token's place, with their log probabilities."""
    seed: int
    """With the position it determines every random number, so the answer continues as on the prefill engine."""
    cached_tokens: int
    """Tokens of the prompt that the prefill engine read from its cache."""
    bytes_per_block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slab:
    """The announcement of consecutive blocks that follow on the channel."""

    first: int
    """The position of the first block."""
    checksums: tuple[int, ...]
    """A CRC-32 of each block."""


def first_token_of(manifest: Manifest) -> SampledTokens:
    """Return the first token as the prefill side sampled it."""
    token, logprob = manifest.first_token, manifest.logprob
    if logprob is None:
        return SampledTokens(tokens=(token,))
    known = TokenLogprob(token=token, logprob=logprob, top=manifest.top_logprobs)
    return SampledTokens(tokens=(token,), logprobs=(known,))


def prompt_digest(tokens: Sequence[int], salt: str) -> str:
    """Return a digest that names a prompt within one cache salt."""
    return hashlib.sha256(salt.encode() + b"\0" + pack(f"<{len(tokens)}I", *tokens)).hexdigest()


def fingerprint(model: Path, *, quantization: str, dtype: str) -> str:
    """Return a digest that names a model and how its weights are held.

    Of the checkpoint it covers the config, and of each weight file the name, the size, the beginning and the end.
    """
    digest = hashlib.sha256(f"{quantization} {dtype} ".encode() + (model / "config.json").read_bytes())
    for path in sorted(model.glob("*.safetensors")):
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_SAMPLE_BYTES)
            file.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(f"{path.name} {size} ".encode() + head + file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def checksums(content: Tensor) -> tuple[int, ...]:
    """Return a CRC-32 of each row of `content` [blocks, bytes]."""
    rows = content.numpy()
    return tuple(zlib.crc32(rows[index]) for index in range(len(rows)))


def send_frame(connection: socket.socket, value: object) -> None:
    """Send one JSON value; a dataclass is sent as an object."""
    plain = asdict(value) if hasattr(value, "__dataclass_fields__") else value  # type: ignore[call-overload]
    body = json.dumps(plain).encode()
    connection.sendall(len(body).to_bytes(4, "big") + body)


def receive_frame(connection: socket.socket) -> dict[str, Any]:
    """Receive one JSON object. Raises HandoffFailed when the peer has left, refuses, or sends anything else."""
    size = int.from_bytes(receive_exactly(connection, 4), "big")
    if size > FRAME_BYTES_MAX:
        raise HandoffFailed(f"a frame of {size} bytes is more than {FRAME_BYTES_MAX}")
    try:
        value = json.loads(receive_exactly(connection, size))
    except ValueError as err:
        raise HandoffFailed("the peer sent invalid JSON") from err
    if not isinstance(value, dict):
        raise HandoffFailed("the peer sent JSON that is no object")
    if "refused" in value:
        raise HandoffFailed(str(value["refused"]))
    return value


def receive_as(connection: socket.socket, kind: type[Message]) -> Message:
    """Receive one frame as a message of type `kind`."""
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
        raise HandoffFailed(f"the peer sent no valid {kind.__name__} message") from err


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Receive `size` bytes. Raises HandoffFailed when the connection ends before."""
    buffer = bytearray(size)
    receive_into(connection, memoryview(buffer))
    return bytes(buffer)


def receive_into(connection: socket.socket, view: memoryview) -> None:
    """Fill `view` from the connection. Raises HandoffFailed when the connection ends before."""
    while view:
        received = connection.recv_into(view)
        if not received:
            raise HandoffFailed("the peer has left")
        view = view[received:]
