"""Reads the file of a tokenizer."""

from pathlib import Path

from tokenizers import Tokenizer
from xxhash import xxh3_128_hexdigest


def read_tokenizer(directory: Path) -> tuple[Tokenizer, str]:
    """Read tokenizer.json of a directory and return the tokenizer and the file's digest. Raises ValueError."""
    try:
        data = (directory / "tokenizer.json").read_bytes()
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as err:  # tokenizers raises nothing more precise
        raise ValueError(f"{directory / 'tokenizer.json'} cannot be read: {err}") from err
    # Some files set a length for truncation or padding; prompts are encoded as they are.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, xxh3_128_hexdigest(data)
