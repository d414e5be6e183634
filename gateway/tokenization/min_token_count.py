"""How much text can one token stand for? Then a text of so many bytes has at least so many tokens, unencoded.

Only for tokenizers that lose nothing of a text: every byte of it ends up in some token. Those are byte-level BPE,
and BPE that falls back to bytes. What drops blanks, strips accents, or makes one unknown token of a whole word has
no such bound.
"""

import json
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

NORMALIZATION_FACTOR = 4
"""Unicode normalization shrinks a text to no less than a quarter: four bytes of a mathematical A to one of A."""

_FORMS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_KEEP_ALL = frozenset({"ByteLevel", "Digits", "Metaspace"})


def token_bytes_max(tokenizer: Tokenizer) -> int | None:
    """UTF-8 bytes of a text that one token can stand for; never too few. None: there is no bound."""
    byte_level = any(part["type"] == "ByteLevel" for part in _parts(tokenizer))
    shrink = _shrink(tokenizer)
    added = tokenizer.get_added_tokens_decoder().values()
    if (
        shrink is None
        or not _knows_every_byte(tokenizer, byte_level=byte_level)
        # These take the blanks beside them along, however many.
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
    """Is there a token for each byte, so that nothing is dropped or unknown?"""
    if not isinstance(tokenizer.model, models.BPE):
        return False
    if byte_level:
        needed = set(pre_tokenizers.ByteLevel.alphabet())
    elif tokenizer.model.byte_fallback:
        needed = {f"<0x{byte:02X}>" for byte in range(256)}
    else:
        return False
    return needed <= tokenizer.get_vocab(with_added_tokens=False).keys()


def _shrink(tokenizer: Tokenizer) -> int | None:
    """By what factor a text may become smaller before it meets the vocabulary; None if by any."""
    factor = 1
    for part in _parts(tokenizer):
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


def _parts(tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """The steps before the model, each as it stands in tokenizer.json."""
    for step in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        if step is not None:
            yield from _flat(json.loads(step.__getstate__()))


def _flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    inner = step.get("normalizers") or step.get("pretokenizers")
    if step["type"] != "Sequence":
        yield step
    for part in inner or ():
        yield from _flat(part)
