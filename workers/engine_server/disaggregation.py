"""Makes a worker one half of a pair: the prefill half listens for handoffs, the decode half fetches them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from workers.engine.async_engine import AsyncEngine
from workers.engine.disaggregation.decode import DecodeSide
from workers.engine.disaggregation.handoff import Leases
from workers.engine.disaggregation.manifest import fingerprint
from workers.engine.disaggregation.prefill import PrefillServer, PrefillSide
from workers.engine.engine import Engine
from workers.engine_server.options import WorkerOptions


class DisaggregationStatus:
    """Which half this worker is, and what it has done as such."""

    def __init__(self, mode: str, port: int | None = None, counted: Any = None) -> None:
        self.mode = mode
        self.port = port
        """Where decode workers find a prefill worker."""
        self._counted = counted

    def counts(self) -> dict[str, Any]:
        """Handoffs so far."""
        return {"mode": self.mode} | (asdict(self._counted) if self._counted else {})


@asynccontextmanager
async def halved(
    options: WorkerOptions, engine: Engine, running: AsyncEngine
) -> AsyncIterator[DisaggregationStatus]:
    """The handoffs of a worker, for as long as it serves. OSError if the bootstrap port is taken."""
    if options.disaggregation_mode == "null" or engine.store is None:
        yield DisaggregationStatus("null")
        return
    name = fingerprint(options.model, quantization=options.quantization, dtype=engine.info.dtype)
    if options.disaggregation_mode == "decode":
        side = DecodeSide(
            engine, running.call, fingerprint=name, backend=options.disaggregation_transfer_backend
        )
        engine.side = side
        try:
            yield DisaggregationStatus("decode", counted=side.taken)
        finally:
            side.close()
        return

    def let_go(request_id: str) -> None:
        # Not waited for: it may be the engine's own thread that says so.
        running.call(lambda: _let_go(engine, request_id))

    leases = Leases(let_go)
    server = PrefillServer(engine.store, leases, fingerprint=name)
    engine.side = PrefillSide(engine, leases)
    port = server.listen(options.kv_events_host, options.disaggregation_bootstrap_port)
    try:
        yield DisaggregationStatus("prefill", port, server.given)
    finally:
        server.close()


def _let_go(engine: Engine, request_id: str) -> list[Any]:
    engine.scheduler.let_go(request_id)
    return []
