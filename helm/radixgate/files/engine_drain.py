"""Waits until an engine runs no request any more, or for so many seconds: `engine_drain.py METRICS_URL SECONDS`.

The pod's end is known to gateways before this begins, so no new requests come. An engine without these metrics, or
without an answer, is waited for to the end.
"""

import re
import sys
import time
from urllib.error import URLError
from urllib.request import urlopen

RUNNING = re.compile(
    r"^(?:sglang|vllm):num_(?:running_reqs|queue_reqs|requests_running|requests_waiting)\b[^\n]* (\S+)$", re.M
)
NOTICE_SECONDS = 5.0
"""Time for gateways to learn of the end."""

url, seconds = sys.argv[1], float(sys.argv[2])
deadline = time.monotonic() + seconds
time.sleep(min(NOTICE_SECONDS, seconds))
while time.monotonic() < deadline:
    try:
        with urlopen(url, timeout=5) as answer:
            counts = [float(value) for value in RUNNING.findall(answer.read(2**24).decode(errors="replace"))]
    except (URLError, OSError):
        counts = []
    if counts and not any(counts):
        break
    time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))
