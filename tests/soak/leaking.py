"""A gateway with a planted memory leak: `python -m tests.soak.leaking BYTES serve ...`. Its soak must fail."""

import sys

from gateway import pipeline
from gateway.__main__ import main

NOTHING = sys.getsizeof(b"")


def plant(leaked: int) -> None:
    """Let so many bytes stay in memory after every request from now on."""
    kept: list[bytes] = []
    notify = pipeline.notify

    def notify_and_keep(*arguments: object) -> None:
        kept.append(bytes(leaked - NOTHING))
        notify(*arguments)  # type: ignore[arg-type]  # the same arguments

    pipeline.notify = notify_and_keep


if __name__ == "__main__":
    plant(int(sys.argv.pop(1)))
    main()
