"""The bytes of each token, so that text can be put together token by token and stay exact.

Two families of tokenizers write bytes in two ways:

    byte level (GPT-2, Llama 3, Qwen)    every byte has a printable stand-in:     "Ġthe" -> b" the"
    metaspace  (Llama 2)                 a bar for a space, <0xE4> for a byte:    "▁the" -> b" the"

Joining bytes and decoding UTF-8 once at the end is what the tokenizer's own `decode` does. Doing the same by
increments is exact whatever the tokens are; decoding each token alone is not.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from workers.engine.errors import CheckpointInvalid

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """Token ids to bytes. Special tokens and unknown ids have none."""

    def __init__(self, tokens: Mapping[int, str], special: frozenset[int], *, byte_level: bool) -> None:
        self._tokens = tokens
        self._special = special
        self._byte_level = byte_level
        self._stand_ins = {stand_in: byte for byte, stand_in in _byte_stand_ins()}
        self._pieces: dict[int, bytes] = {}

    def text_bytes(self, token: int) -> bytes:
        """What this token adds to a text."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._spell(token)
        return piece

    def written_bytes(self, token: int) -> bytes:
        """The same, but special tokens as they are written: for who asks what a token is, and not for text."""
        if token in self._special:
            return self._tokens[token].encode()
        return self.text_bytes(token)

    def special_ids(self, texts: Iterable[str]) -> frozenset[int]:
        """The special tokens that are written so; what is no such token is left out."""
        wanted = set(texts)
        return frozenset(token for token in self._special if self._tokens.get(token) in wanted)

    @property
    def special_tokens(self) -> frozenset[int]:
        """Tokens that are no text."""
        return self._special

    def _spell(self, token: int) -> bytes:
        written = self._tokens.get(token)
        if written is None or token in self._special:
            return b""
        if not self._byte_level:
            if match := _BYTE_TOKEN.fullmatch(written):
                return bytes.fromhex(match[1])
            return written.replace("▁", " ").encode()
        try:
            return bytes(self._stand_ins[character] for character in written)
        except KeyError:
            # An added token is written plainly and may hold characters that stand for no byte.
            return written.encode()


def is_byte_level(decoder: Mapping[str, Any] | None) -> bool:
    """Which family a tokenizer.json's `decoder` belongs to; CheckpointInvalid for any third one."""
    kinds = set(_kinds(decoder)) if decoder else set()
    if "ByteLevel" in kinds:
        return True
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return False
    raise CheckpointInvalid(f"tokenizer.json: decoder {sorted(kinds)} is neither byte level nor metaspace")


def _kinds(decoder: Mapping[str, Any]) -> Iterator[str]:
    yield str(decoder.get("type"))
    for part in decoder.get("decoders") or ():
        yield from _kinds(part)


def _byte_stand_ins() -> Iterator[tuple[int, str]]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the others for 256 and up, in order."""
    stand_in = 256
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE:
            yield byte, chr(byte)
        else:
            yield byte, chr(stand_in)
            stand_in += 1
