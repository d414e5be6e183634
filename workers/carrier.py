"""Carriers: a carrier sends a request to its worker in place of the gateway's own connections.

A proxy in front of the gateway can be a carrier: it requests the worker of a request from the gateway, and
transfers the bytes itself.

    HttpWorker.stream -- bytes of an HTTP request --> RequestTransport --> AnswerReader
                                                      the pool of connections, or a carrier's
"""

from collections.abc import Callable
from typing import Any, Protocol


class AnswerReader(Protocol):
    """An HTTP answer of which the head has arrived."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def content_type(self) -> str:
        """The content type, without parameters for JSON and event streams."""
        ...

    @property
    def retry_after(self) -> str:
        """The header `Retry-After`; empty where there is none."""
        ...

    @property
    def date(self) -> str:
        """The header `Date`; empty where there is none."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the answer has arrived completely."""
        ...

    async def read(self) -> bytes:
        """Return the next piece of the body; empty at its end. Raises ConnectionBroken."""
        ...

    def fail(self, error: Any) -> None:
        """End the answer with a ConnectionBroken, which the waiting reader gets."""
        ...

    def release(self) -> None:
        """End the answer; no more of it is read."""
        ...


class RequestTransport(Protocol):
    """Sends one HTTP request to one worker, and returns the answer."""

    async def send(
        self,
        request: tuple[bytes | memoryview, ...],
        first_byte_seconds_max: float,
        on_sent: Callable[[], None] = ...,
        on_wait: Callable[[], None] = ...,
    ) -> tuple[AnswerReader, bytes]:
        """Send a request; return the answer with its head read, and the first piece of its body.

        `on_sent` is called when the request goes out, `on_wait` before anything is waited for. Raises
        ConnectionBroken, ConnectionTimedOut.
        """
        ...


class Carrier(Protocol):
    """Carries one client request to the worker that the gateway chooses."""

    @property
    def addresses(self) -> frozenset[str] | None:
        """The addresses of the workers that may get the request, each `host:port`; None: any worker."""
        ...

    def transport_to(self, host: str, port: int) -> RequestTransport | None:
        """Return the transport to the worker at this address; None: the gateway sends the request itself.

        A carrier takes a request only once; the gateway makes further attempts itself.
        """
        ...
