"""What a client's headers ask of the queue: a service class, an end of its patience, signs of life.

    x-radixgate-class: voice            see gateway/models/service_classes.py
    x-radixgate-keep-alive: 5           while it waits for its turn a stream gets a comment every 5 seconds
    x-stainless-read-timeout: 600       how long the SDK waits, in seconds: OpenAI's and Anthropic's for Python say
    x-stainless-timeout: 600            so by themselves, and those for JavaScript
    x-request-timeout: 30               so does who has no SDK

Who would have gone before an answer can begin is not sent to a worker. A timeout that is no number says nothing.
"""

from collections.abc import Mapping
from math import isfinite

from gateway.domain.errors import BadRequest
from gateway.domain.request import NO_QUEUE_HEADERS, QueueHeaders
from gateway.models.service_classes import HEADER

KEEP_ALIVE = "x-radixgate-keep-alive"
TIMEOUTS = ("x-stainless-read-timeout", "x-stainless-timeout", "x-request-timeout")
KEEP_ALIVE_SECONDS = (0.1, 60.0)


def parse_queue_headers(headers: Mapping[str, str]) -> QueueHeaders:
    """Raises BadRequest."""
    kind, comments = headers.get(HEADER), headers.get(KEEP_ALIVE)
    seconds = [found for name in TIMEOUTS if (found := _seconds(headers.get(name))) is not None]
    if kind is None and comments is None and not seconds:
        return NO_QUEUE_HEADERS
    every = _seconds(comments)
    least, most = KEEP_ALIVE_SECONDS
    if comments is not None and (every is None or not least <= every <= most):
        raise BadRequest(f"{KEEP_ALIVE} is a number of seconds from {least:g} to {most:g}.")
    return QueueHeaders(service_class=kind, patience_seconds=min(seconds, default=None), comment_seconds=every)


def _seconds(text: str | None) -> float | None:
    if text is None or len(text) > 20:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if isfinite(seconds) and seconds > 0 else None
