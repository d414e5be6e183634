"""The bytes of each token, from which the text of an answer is joined exactly, token by token.

Two families of tokenizers spell bytes in two ways:

    byte level (GPT-2, Llama 3, Qwen)    every byte has a printable stand-in:     "Ġthe" -> b" the"
    metaspace  (Llama 2)                 a bar for a space, <0xE4> for a byte:    "▁the" -> b" the"

The tokenizer's own `decode` joins the bytes and decodes UTF-8 once at the end. Decoding the joined bytes
incrementally is exact whatever the tokens are; decoding each token alone is not. In the second family each run of
byte tokens is decoded apart: one that is not valid as a whole becomes a replacement character for each byte.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from workers.engine.errors import CheckpointInvalid

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """The bytes of each token id. Special tokens and unknown ids have none."""

    def __init__(self, tokens: Mapping[int, str], special: frozenset[int], *, byte_level: bool) -> None:
        self._tokens = tokens
        self._special = special
        self._byte_level = byte_level
        self._stand_ins = {stand_in: byte for byte, stand_in in _byte_stand_ins()}
        self._pieces: dict[int, bytes] = {}

    def text_bytes(self, token: int) -> bytes:
        """Return the bytes that this token adds to a text."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._spell(token)
        return piece

    def is_fallback_byte(self, token: int) -> bool:
        """Return whether this token is one byte of a character that has no token of its own, as <0xE4>."""
        return not self._byte_level and _BYTE_TOKEN.fullmatch(self._tokens.get(token, "")) is not None

    def written_bytes(self, token: int) -> bytes:
        """Return the bytes of this token; a special token has its written form, for log probabilities."""
        if token in self._special:
            return self._tokens[token].encode()
        return self.text_bytes(token)

    def special_ids(self, texts: Iterable[str]) -> frozenset[int]:
        """Return the ids of the special tokens with these written forms; other texts are ignored."""
        wanted = set(texts)
        return frozenset(token for token in self._special if self._tokens.get(token) in wanted)

    @property
    def special_tokens(self) -> frozenset[int]:
        """The ids of the special tokens, which are not part of the text."""
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
            # An added token is spelled as plain text, and may have characters for which there is no byte.
            return written.encode()


def is_byte_level(decoder: Mapping[str, Any] | None) -> bool:
    """Return whether a tokenizer.json's `decoder` is of the byte-level family, and not of the metaspace family.

    Raises:
        CheckpointInvalid: the decoder is of neither family.
    """
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
    """Yield each byte and its character in GPT-2's table.

    Printable Latin-1 bytes stand for themselves, the others for the characters from 256 on, in order.
    """
    stand_in = 256
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE:
            yield byte, chr(byte)
        else:
            yield byte, chr(stand_in)
            stand_in += 1
