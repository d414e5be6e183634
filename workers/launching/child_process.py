"""The setup of a child process between fork and exec, so that it does not outlive its parent."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Make the kernel send this child SIGTERM when the thread that started it ends; only on Linux, before exec."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == 1:
            os._exit(1)
