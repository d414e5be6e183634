"""The operating system's message for a failed call."""

import os


def reason_of(err: OSError) -> str:
    """Return the system's own words for an error.

    asyncio wraps them in a text of its own, and the error of an unknown host has a negative number.
    """
    if err.errno is not None and err.errno > 0:
        return os.strerror(err.errno)
    return err.strerror or str(err)
