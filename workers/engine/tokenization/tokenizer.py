"""The tokenizer of a checkpoint: text to ids, and ids back to bytes."""

from pathlib import Path

import tokenizers

from workers.engine.checkpoint.json_files import read_json
from workers.engine.errors import CheckpointInvalid
from workers.engine.tokenization.token_bytes import TokenBytes, is_byte_level

LONG_TEXT_CHARS = 8192
"""Longer texts take milliseconds to encode; an event loop should call `encode` in a thread for them."""


class Tokenizer:
    """The tokenizer of a checkpoint, read from tokenizer.json alone, without transformers."""

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        layout = read_json(path)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as err:  # tokenizers raises plain Exception
            raise CheckpointInvalid(f"{path} cannot be read: {err}") from err
        # Some files have a truncation or a padding from training; a prompt must be encoded whole.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self.token_bytes = TokenBytes(
            {token: written for written, token in self._tokenizer.get_vocab().items()},
            frozenset(token for token, entry in added.items() if entry.special),
            byte_level=is_byte_level(layout.get("decoder")),
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of `text`. Long texts are encoded without holding Python's global lock (GIL)."""
        if len(text) <= LONG_TEXT_CHARS:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        # `encode` holds the GIL from start to end; this call releases it, and skips the offsets, which are unused.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def to_json(self) -> str:
        """Return the whole tokenizer in the format of tokenizer.json."""
        return self._tokenizer.to_str()

    def decode(self, tokens: list[int], *, special: bool = False) -> str:
        """Return the text of a whole sequence; `special` includes the special tokens."""
        return self._tokenizer.decode(tokens, skip_special_tokens=not special)
