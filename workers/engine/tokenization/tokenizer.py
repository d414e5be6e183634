"""The tokenizer of a checkpoint: text to ids, and ids back to bytes."""

from pathlib import Path

import tokenizers

from workers.engine.checkpoint.json_files import read_json
from workers.engine.errors import CheckpointInvalid
from workers.engine.tokenization.token_bytes import TokenBytes, is_byte_level

LONG_TEXT_CHARS = 8192
"""Texts above this take milliseconds to encode; an event loop should have a thread do it."""


class Tokenizer:
    """Reads tokenizer.json alone, with no need of transformers."""

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        layout = read_json(path)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as err:  # tokenizers raises plain Exception
            raise CheckpointInvalid(f"{path} cannot be read: {err}") from err
        # Some files carry a limit or a padding from their training; a prompt must come through whole.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self.token_bytes = TokenBytes(
            {token: written for written, token in self._tokenizer.get_vocab().items()},
            frozenset(token for token, entry in added.items() if entry.special),
            byte_level=is_byte_level(layout.get("decoder")),
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of `text`. Long texts are encoded without the interpreter's lock, so a thread helps."""
        if len(text) <= LONG_TEXT_CHARS:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        # `encode` holds the lock from end to end; this one gives it back, and skips offsets that nobody reads.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def to_json(self) -> str:
        """The whole tokenizer, as tokenizer.json has it."""
        return self._tokenizer.to_str()

    def decode(self, tokens: list[int], *, special: bool = False) -> str:
        """The text of a whole sequence; `special`: with the special tokens in it."""
        return self._tokenizer.decode(tokens, skip_special_tokens=not special)
