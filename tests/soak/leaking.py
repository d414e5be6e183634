"""A gateway with a planted leak: `python -m tests.soak.leaking BYTES serve ...`. A soak of it has to fail."""

import sys

from gateway import pipeline
from gateway.__main__ import main

NOTHING = sys.getsizeof(b"")


def plant(leaked: int) -> None:
    """From now on so many bytes stay behind of every request."""
    kept: list[bytes] = []
    tell = pipeline.tell

    def tell_and_keep(*of: object) -> None:
        kept.append(bytes(leaked - NOTHING))
        tell(*of)  # type: ignore[arg-type]  # Whatever it takes.

    pipeline.tell = tell_and_keep


if __name__ == "__main__":
    plant(int(sys.argv.pop(1)))
    main()
