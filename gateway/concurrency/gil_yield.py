"""Letting the event loop run between the long calls of a thread.

Each call keeps the interpreter lock (GIL) until it returns. A thread that waits for the lock meanwhile gets it for
one callback only, and an event loop with many streams has many callbacks. A thread that sleeps for a moment lets
the loop run them all.
"""

import threading
import time

YIELD_SECONDS = 0.001


def yield_gil() -> None:
    """Sleep for a moment if this is not the main thread, so that the event loop can run."""
    if threading.current_thread() is not threading.main_thread():
        time.sleep(YIELD_SECONDS)
