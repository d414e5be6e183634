"""A gateway with a planted memory leak: `python -m tests.soak.leaking BYTES serve ...`. Its soak must fail."""

import sys

from gateway import pipeline
from gateway.__main__ import main

NOTHING = sys.getsizeof(b"")


def plant(leaked: int) -> None:
    """Let so many bytes stay in memory after every request from now on."""
    kept: list[bytes] = []
    tell = pipeline.tell

    def tell_and_keep(*of: object) -> None:
        kept.append(bytes(leaked - NOTHING))
        tell(*of)  # type: ignore[arg-type]  # Whatever it takes.

    pipeline.tell = tell_and_keep


if __name__ == "__main__":
    plant(int(sys.argv.pop(1)))
    main()
