"""The headers by which a client influences its wait in the queue: service class, timeout, keep-alive comments.

    x-radixgate-class: voice            see gateway/models/service_classes.py
    x-radixgate-keep-alive: 5           a waiting stream gets an SSE comment every 5 seconds
    x-stainless-read-timeout: 600       how long the client waits, in seconds: sent by OpenAI's and Anthropic's SDKs
    x-stainless-timeout: 600            for Python; sent by those for JavaScript
    x-request-timeout: 30               the same, for clients without an SDK

A request is not sent to a worker if its client's timeout would end before the answer begins. A timeout that is not
a number is ignored.
"""

from collections.abc import Mapping
from math import isfinite

from gateway.domain.errors import BadRequest
from gateway.domain.request import NO_QUEUE_HEADERS, QueueHeaders
from gateway.models.service_classes import HEADER

KEEP_ALIVE = "x-radixgate-keep-alive"
TIMEOUTS = ("x-stainless-read-timeout", "x-stainless-timeout", "x-request-timeout")
KEEP_ALIVE_SECONDS = (0.1, 60.0)
"""Smallest and largest interval of keep-alive comments."""


def parse_queue_headers(headers: Mapping[str, str]) -> QueueHeaders:
    """Return the queue options in the headers. Raises BadRequest for a malformed keep-alive interval."""
    kind, comments = headers.get(HEADER), headers.get(KEEP_ALIVE)
    seconds: list[float] = []
    for name in TIMEOUTS:
        text = headers.get(name)
        if text is not None and (found := _seconds(text)) is not None:
            seconds.append(found)
    if kind is None and comments is None and not seconds:
        return NO_QUEUE_HEADERS
    every = _seconds(comments) if comments is not None else None
    least, most = KEEP_ALIVE_SECONDS
    if comments is not None and (every is None or not least <= every <= most):
        raise BadRequest(f"{KEEP_ALIVE} is a number of seconds from {least:g} to {most:g}.")
    return QueueHeaders(service_class=kind, timeout_seconds=min(seconds, default=None), comment_seconds=every)


def _seconds(text: str) -> float | None:
    if len(text) > 20:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if isfinite(seconds) and seconds > 0 else None
