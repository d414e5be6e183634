"""Sets up a worker for prefill/decode disaggregation: it hands over prompts, or it fetches them, or neither."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from workers.engine.async_engine import AsyncEngine
from workers.engine.disaggregation.decode import DecodeSide
from workers.engine.disaggregation.handoff import HandoffLeases
from workers.engine.disaggregation.messages import fingerprint
from workers.engine.disaggregation.prefill import PrefillServer, PrefillSide
from workers.engine.engine import Engine
from workers.engine_server.options import WorkerOptions


class DisaggregationStatus:
    """The disaggregation mode of a worker, and its counts of handoffs."""

    def __init__(self, mode: str, port: int | None = None, counters: Any = None) -> None:
        self.mode = mode
        """`null`, `prefill` or `decode`."""
        self.port = port
        """The port at which decode workers connect to a prefill worker; None on other workers."""
        self._counters = counters

    def counts(self) -> dict[str, Any]:
        """Return the mode and the counts of handoffs so far."""
        return {"mode": self.mode} | (asdict(self._counters) if self._counters else {})


@asynccontextmanager
async def disaggregated(
    options: WorkerOptions, engine: Engine, async_engine: AsyncEngine
) -> AsyncIterator[DisaggregationStatus]:
    """Run the handoffs of a worker for as long as it serves.

    Raises:
        OSError: The bootstrap port is taken.
    """
    if options.disaggregation_mode == "null" or engine.store is None:
        yield DisaggregationStatus("null")
        return
    name = fingerprint(options.model, quantization=options.quantization, dtype=engine.info.dtype)
    if options.disaggregation_mode == "decode":
        side = DecodeSide(
            engine, async_engine.call, fingerprint=name, backend=options.disaggregation_transfer_backend
        )
        engine.handoff_side = side
        try:
            yield DisaggregationStatus("decode", counters=side.counters)
        finally:
            side.close()
        return

    def release(request_id: str) -> None:
        # The result is not waited for: the caller may be the engine's own thread.
        async_engine.call(lambda: _release_blocks(engine, request_id))

    leases = HandoffLeases(release)
    server = PrefillServer(engine.store, leases, fingerprint=name)
    engine.handoff_side = PrefillSide(engine, leases)
    port = server.listen(options.kv_events_host, options.disaggregation_bootstrap_port)
    try:
        yield DisaggregationStatus("prefill", port, server.counters)
    finally:
        server.close()


def _release_blocks(engine: Engine, request_id: str) -> list[Any]:
    engine.scheduler.release_held(request_id)
    return []
