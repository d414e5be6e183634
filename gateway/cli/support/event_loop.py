"""The event loop that commands run on."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on uvloop where it is installed, else on asyncio's own loop, and return its result.

    A coroutine that a signal kept from its start is closed, so that Python does not warn about it.
    """
    try:
        try:
            import uvloop
        except ImportError:
            return asyncio.run(work)
        else:
            return uvloop.run(work)
    finally:
        work.close()
