"""The process that encodes very long prompts, and what it and the gateway say to each other.

    gateway --> header (directory, digest, special) | texts: chunks after their lengths; 0 ends a text
    gateway <-- count of texts, or NO_ANSWER        | tokens: their number, then 4 bytes each

Tokens are packed as they go: a list of two million of Python's numbers would hold up whoever makes it. It ends when
its gateway does, however that ends.

    python -m gateway.tokenization.encoder_child GATEWAY_PID
"""

import ctypes
import os
import signal
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import BinaryIO

import msgspec
from tokenizers import Tokenizer
from xxhash import xxh3_128_hexdigest

from radix_cache.blocks import TOKEN_BYTES, Tokens
from workers.launching.child_process import PR_SET_PDEATHSIG

LENGTH = Struct("<I")
NO_ANSWER = 2**32 - 1
KNOWN_MAX = 16
"""Tokenizers, of tens of megabytes each, that a process keeps: reloaded settings bring others."""
CHUNK_CHARACTERS = 64 * 1024
NICE = 5
"""Behind the gateway's own process, where they share a processor."""
TRIMMED_CHARACTERS = 1_000_000
"""An encoding takes about a hundred bytes a token: of longer texts it is given back to the system."""


class Asked(msgspec.Struct, array_like=True, frozen=True):
    """`directory`, `digest`: of the tokenizer, as the gateway read it. `special`: with special tokens."""

    directory: str
    digest: str
    special: bool
    texts: int


class Ended(Exception):
    """The other side is gone."""


def read_tokenizer(directory: Path) -> tuple[Tokenizer, str]:
    """From its tokenizer.json, with the digest of that. Raises ValueError."""
    try:
        data = (directory / "tokenizer.json").read_bytes()
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as err:  # tokenizers raises nothing more precise
        raise ValueError(f"{directory / 'tokenizer.json'} cannot be read: {err}") from err
    # Some files ask for a length of their own; a prompt is as long as it is.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, xxh3_128_hexdigest(data)


def ask(out: BinaryIO, asked: Asked, texts: Sequence[str]) -> None:
    """The gateway's question. Raises OSError."""
    header = msgspec.msgpack.encode(asked)
    out.write(LENGTH.pack(len(header)) + header)
    for text in texts:
        for at in range(0, len(text), CHUNK_CHARACTERS):
            chunk = text[at : at + CHUNK_CHARACTERS].encode("utf-8", "surrogatepass")
            out.write(LENGTH.pack(len(chunk)) + chunk)
        out.write(LENGTH.pack(0))
    out.flush()


def answer(source: BinaryIO) -> list[Tokens] | None:
    """The child's answer; None where it has none. Raises Ended and OSError."""
    count = _length(source)
    if count == NO_ANSWER:
        return None
    found = []
    for _ in range(count):
        tokens: Tokens = array("I")
        missing = _length(source) * TOKEN_BYTES
        while missing:
            part = _exactly(source, min(missing, CHUNK_CHARACTERS * TOKEN_BYTES))
            tokens.frombytes(part)
            missing -= len(part)
        found.append(tokens)
    return found


def serve(source: BinaryIO, out: BinaryIO) -> None:
    """Answers until nobody asks any more. Raises OSError."""
    known: dict[tuple[str, str], Tokenizer | None] = {}
    while True:
        try:
            asked = msgspec.msgpack.decode(_exactly(source, _length(source)), type=Asked)
            texts = [_text(source) for _ in range(asked.texts)]
        except Ended:
            return
        key = (asked.directory, asked.digest)
        # The one that was asked for last stands last.
        known[key] = known.pop(key) if key in known else _read(*key)
        if len(known) > KNOWN_MAX:
            del known[next(iter(known))]
        _tell(out, _encoded(known[key], texts, special=asked.special))
        if sum(map(len, texts)) > TRIMMED_CHARACTERS:
            _trim()


def _read(directory: str, digest: str) -> Tokenizer | None:
    """None where it is no longer the gateway's."""
    try:
        tokenizer, found = read_tokenizer(Path(directory))
    except ValueError:
        return None
    return tokenizer if found == digest else None


def _encoded(tokenizer: Tokenizer | None, texts: list[bytes], *, special: bool) -> list[Tokens] | None:
    if tokenizer is None:
        return None
    try:
        decoded = [text.decode("utf-8", "surrogatepass") for text in texts]
        encodings = tokenizer.encode_batch_fast(decoded, add_special_tokens=special)
    except Exception:  # noqa: BLE001 - the gateway asks its own tokenizer then, and gets the error where it looks
        return None
    return [array("I", encoding.ids) for encoding in encodings]


def _tell(out: BinaryIO, found: list[Tokens] | None) -> None:
    if found is None:
        out.write(LENGTH.pack(NO_ANSWER))
    else:
        out.write(LENGTH.pack(len(found)))
        for tokens in found:
            out.write(LENGTH.pack(len(tokens)))
            out.write(memoryview(tokens).cast("B"))
    out.flush()


def _text(source: BinaryIO) -> bytes:
    chunks = []
    while length := _length(source):
        chunks.append(_exactly(source, length))
    return b"".join(chunks)


def _length(source: BinaryIO) -> int:
    (length,) = LENGTH.unpack(_exactly(source, LENGTH.size))
    return int(length)


def _exactly(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:
        raise Ended
    return data


def _trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def main() -> None:
    """Until its gateway ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        return
    # Ctrl-C at a keyboard is for the gateway, which ends its children when it has drained.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICE)
    # Whoever prints must not do so into an answer.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(sys.stdin.buffer, out)
    except OSError:
        return


if __name__ == "__main__":
    main()
