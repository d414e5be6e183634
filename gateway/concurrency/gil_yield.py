"""Long calls one after the other in a thread, and the event loop between them.

Each keeps the interpreter until it returns, and whoever asks for it meanwhile gets it for one callback, of which a
loop with many streams has many. Asleep for a moment, a thread lets it have them all.
"""

import threading
import time

BREATH_SECONDS = 0.001


def breathe() -> None:
    """Where this is a thread, it lets others go on."""
    if threading.current_thread() is not threading.main_thread():
        time.sleep(BREATH_SECONDS)
