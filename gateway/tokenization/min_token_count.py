"""Computes a lower bound of a text's token count without encoding it, from the most bytes that a token can encode.

The bound exists only for tokenizers that lose nothing of a text, so that every byte ends up in some token:
byte-level BPE, and BPE with byte fallback. A tokenizer that drops spaces, strips accents, or turns a whole word
into one unknown token has no such bound.
"""

import json
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

NORMALIZATION_FACTOR = 4
"""Unicode normalization shrinks a text to a quarter at most: a mathematical A (four bytes) becomes an A (one)."""

_FORMS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_KEEP_ALL = frozenset({"ByteLevel", "Digits", "Metaspace"})


def token_bytes_max(tokenizer: Tokenizer) -> int | None:
    """Return the most UTF-8 bytes of text that one token can encode; None if there is no bound."""
    byte_level = any(part["type"] == "ByteLevel" for part in _steps(tokenizer))
    shrink = _shrink_factor(tokenizer)
    added = tokenizer.get_added_tokens_decoder().values()
    if (
        shrink is None
        or not _knows_every_byte(tokenizer, byte_level=byte_level)
        # Such tokens absorb any number of adjacent spaces.
        or any(token.lstrip or token.rstrip for token in added)
    ):
        return None
    # The byte-level alphabet writes each byte as one character.
    learned = (
        len(token) if byte_level else len(token.encode())
        for token in tokenizer.get_vocab(with_added_tokens=False)
    )
    longest = max(max(learned), max((len(token.content.encode()) for token in added), default=0))
    return longest * shrink


def _knows_every_byte(tokenizer: Tokenizer, *, byte_level: bool) -> bool:
    """Return whether there is a token for each byte, so that nothing is dropped or unknown."""
    if not isinstance(tokenizer.model, models.BPE):
        return False
    if byte_level:
        needed = set(pre_tokenizers.ByteLevel.alphabet())
    elif tokenizer.model.byte_fallback:
        needed = {f"<0x{byte:02X}>" for byte in range(256)}
    else:
        return False
    return needed <= tokenizer.get_vocab(with_added_tokens=False).keys()


def _shrink_factor(tokenizer: Tokenizer) -> int | None:
    """Return the factor by which normalization may shrink a text; None if there is no limit."""
    factor = 1
    for part in _steps(tokenizer):
        kind = part["type"]
        if kind in _FORMS:
            factor = NORMALIZATION_FACTOR
        elif kind in ("Split", "Punctuation"):
            if part["behavior"] == "Removed":
                return None
        elif kind == "Replace":
            before = part["pattern"].get("String")
            if not before or len(part["content"].encode()) < len(before.encode()):
                return None
        elif kind not in _KEEP_ALL and kind != "Prepend":
            return None
    return factor


def _steps(tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """Yield the steps before the model (normalizers, pre-tokenizers), each as in tokenizer.json."""
    for step in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        if step is not None:
            yield from _flatten(json.loads(step.__getstate__()))


def _flatten(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    inner = step.get("normalizers") or step.get("pretokenizers")
    if step["type"] != "Sequence":
        yield step
    for part in inner or ():
        yield from _flatten(part)
