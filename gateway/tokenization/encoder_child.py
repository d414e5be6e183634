"""The child process that encodes very long prompts, and its protocol with the gateway over pipes.

    gateway --> header (directory, digest, special) | texts: chunks, each after its length; length 0 ends a text
    gateway <-- count of texts                      | for each text the number of its tokens, then 4 bytes each
    gateway <-- NO_ANSWER, FAILED or TOO_MANY       | after TOO_MANY a lower bound of the number of tokens

A child has its own memory limit, so that a text that exceeds it ends the child and not the gateway.

Tokens travel as packed arrays, because building a list of two million Python integers would block a process. The
child ends when its gateway ends, for whatever reason.

    python -m gateway.tokenization.encoder_child GATEWAY_PID
"""

import ctypes
import os
import resource
import signal
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import BinaryIO

import msgspec

from gateway.process.memory_return import return_freed_memory
from gateway.tokenization.piecewise_encoder import (
    TOKENS_MAX,
    EncodingFailed,
    PiecewiseEncoder,
    TooManyTokens,
)
from gateway.tokenization.tokenizer_file import read_tokenizer
from radix_cache.blocks import TOKEN_BYTES, Tokens
from workers.launching.child_process import PR_SET_PDEATHSIG

LENGTH = Struct("<I")
NO_ANSWER = 2**32 - 1
"""The tokenizer's file is no longer the one that the gateway read."""
FAILED = 2**32 - 2
"""The tokenizer cannot encode the texts."""
TOO_MANY = 2**32 - 3
"""The texts have more tokens than allowed."""
MEMORY_BYTES_MAX = 640 * 1024**2
"""The memory limit of a child; its tokenizers take tens of megabytes each, and a piece of a text up to eighty."""
TOKENIZERS_MAX = 16
"""The most tokenizers, of tens of megabytes each, that a process keeps; reloaded settings may name others."""
CHUNK_CHARACTERS = 64 * 1024
NICE = 5
"""Added to the process's niceness, so that the gateway itself gets a shared processor first."""
TRIM_CHARACTERS_MIN = 1_000_000
"""After longer texts the memory of the encoding, about a hundred bytes per token, is returned to the system."""


class EncodeRequest(msgspec.Struct, array_like=True, frozen=True):
    """The header of one request to the child process; the texts follow it."""

    directory: str
    """The directory of the tokenizer."""
    digest: str
    """The digest of tokenizer.json as the gateway read it."""
    special: bool
    """Add special tokens."""
    texts: int
    """The number of texts that follow."""
    tokens_max: int = TOKENS_MAX
    """The largest number of tokens."""
    together: bool = False
    """Whether `tokens_max` applies to all texts together, or to each of them."""


class PipeClosed(Exception):
    """The process at the other end of the pipe is gone."""


def write_request(out: BinaryIO, request: EncodeRequest, texts: Sequence[str]) -> None:
    """Send a request and its texts to the child. Raises OSError."""
    header = msgspec.msgpack.encode(request)
    out.write(LENGTH.pack(len(header)) + header)
    for text in texts:
        for at in range(0, len(text), CHUNK_CHARACTERS):
            chunk = text[at : at + CHUNK_CHARACTERS].encode("utf-8", "surrogatepass")
            out.write(LENGTH.pack(len(chunk)) + chunk)
        out.write(LENGTH.pack(0))
    out.flush()


def read_answer(source: BinaryIO) -> list[Tokens] | None:
    """Read the tokens of each text from the child; None if the child has another tokenizer.

    Raises TooManyTokens, EncodingFailed, PipeClosed, OSError.
    """
    count = _read_length(source)
    if count == NO_ANSWER:
        return None
    if count == FAILED:
        raise EncodingFailed
    if count == TOO_MANY:
        raise TooManyTokens(_read_length(source))
    found = []
    for _ in range(count):
        tokens: Tokens = array("I")
        missing = _read_length(source) * TOKEN_BYTES
        while missing:
            part = _read_exactly(source, min(missing, CHUNK_CHARACTERS * TOKEN_BYTES))
            tokens.frombytes(part)
            missing -= len(part)
        found.append(tokens)
    return found


def serve(source: BinaryIO, out: BinaryIO) -> None:
    """Answer requests until the pipe is closed. Raises OSError."""
    tokenizers: dict[tuple[str, str], PiecewiseEncoder | None] = {}
    while True:
        try:
            request = msgspec.msgpack.decode(_read_exactly(source, _read_length(source)), type=EncodeRequest)
            texts = [_read_text(source) for _ in range(request.texts)]
        except PipeClosed:
            return
        key = (request.directory, request.digest)
        # The most recently used tokenizer is last.
        tokenizers[key] = tokenizers.pop(key) if key in tokenizers else _read_same_tokenizer(*key)
        if len(tokenizers) > TOKENIZERS_MAX:
            del tokenizers[next(iter(tokenizers))]
        _answer(out, tokenizers[key], request, texts)
        if sum(map(len, texts)) > TRIM_CHARACTERS_MIN:
            _trim_memory()


def _read_same_tokenizer(directory: str, digest: str) -> PiecewiseEncoder | None:
    """Read the tokenizer; None if the file is no longer the one that the gateway read."""
    try:
        tokenizer, found = read_tokenizer(Path(directory))
    except ValueError:
        return None
    return PiecewiseEncoder(tokenizer) if found == digest else None


def _answer(
    out: BinaryIO, encoder: PiecewiseEncoder | None, request: EncodeRequest, texts: list[bytes]
) -> None:
    """Encode the texts and write the answer. Raises OSError."""
    if encoder is None:
        out.write(LENGTH.pack(NO_ANSWER))
    else:
        try:
            decoded = [text.decode("utf-8", "surrogatepass") for text in texts]
            found = encoder.encode(
                decoded, special=request.special, tokens_max=request.tokens_max, together=request.together
            )
        except TooManyTokens as err:
            out.write(LENGTH.pack(TOO_MANY) + LENGTH.pack(err.at_least))
        except EncodingFailed:
            out.write(LENGTH.pack(FAILED))
        else:
            _write_tokens(out, found)
    out.flush()


def _write_tokens(out: BinaryIO, found: list[Tokens]) -> None:
    out.write(LENGTH.pack(len(found)))
    for tokens in found:
        out.write(LENGTH.pack(len(tokens)))
        out.write(memoryview(tokens).cast("B"))


def _read_text(source: BinaryIO) -> bytes:
    chunks = []
    while length := _read_length(source):
        chunks.append(_read_exactly(source, length))
    return b"".join(chunks)


def _read_length(source: BinaryIO) -> int:
    (length,) = LENGTH.unpack(_read_exactly(source, LENGTH.size))
    return int(length)


def _read_exactly(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:
        raise PipeClosed
    return data


def _trim_memory() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def main() -> None:
    """Serve the gateway that has the process id of the first argument, until that process ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        return
    # Ctrl-C is handled by the gateway, which ends its children after it has drained.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICE)
    return_freed_memory()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # A core file would hold prompts.
    # Text that a library prints to standard output must not end up in an answer.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(sys.stdin.buffer, out)
    except OSError:
        return


if __name__ == "__main__":
    main()
