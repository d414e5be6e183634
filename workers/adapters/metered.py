"""The base adapter for engines with OpenAI's API, a cheap /health, and gauges in Prometheus format.

    kind       gauges                                           longest prompt and answer    slots
    llamacpp   /metrics, with its flag --metrics                /props                       /props
    tgi        /metrics                                         /info                        not reported
    trtllm     /prometheus/metrics                              not reported                 not reported
    lmdeploy   /metrics, with its flag --enable-metrics         not reported                 not reported

These engines have no cache salt, so all tenants share their prefix caches.
"""

import re
from typing import NamedTuple

from workers.adapter import WorkerFailed, WorkerReport, WorkerTarget
from workers.adapters.openai import OpenAIAdapter
from workers.adapters.vllm import PROBES_PER_METRICS
from workers.load_reports.engine_loads import EngineLoad, load_in_gauges


class EngineSize(NamedTuple):
    """What an engine reports of its size; a field is None if it does not."""

    longest_context: int | None = None
    """The tokens that a prompt and its answer may have together."""
    slots: int | None = None
    """Requests that it runs at a time."""


class MeteredAdapter(OpenAIAdapter):
    """The base of WorkerAdapters of engines that report their requests in gauges."""

    metrics_path = "metrics"
    gauges: re.Pattern[bytes]
    """Gauges that together count the requests that run or wait."""

    def __init__(self, target: WorkerTarget) -> None:
        super().__init__(target)
        self._load: EngineLoad | None = None
        self._size: EngineSize | None = None
        self._probes = 0

    async def probe(self) -> WorkerReport:
        """Check that the worker serves, and read its load. Raises WorkerFailed."""
        try:
            await self.http.get_json("health", None)
        except WorkerFailed:
            self._size = None  # after a restart the engine may have another one
            raise
        listed = await self.models()
        if self._size is None:
            self._size = await self._read_size()
        if self._probes % PROBES_PER_METRICS == 0:
            self._load = await self._read_load()
        self._probes += 1
        longest, slots = self._size
        return WorkerReport(
            models=listed.names,
            context_lengths={
                **(dict.fromkeys(listed.names, longest) if longest else {}),
                **listed.context_lengths,
            },
            slots=slots,
            load=self._load,
        )

    async def size(self) -> EngineSize:
        """Return what the engine reports of its size. Raises WorkerFailed."""
        return EngineSize()

    async def _read_size(self) -> EngineSize:
        try:
            size = await self.size()
        except WorkerFailed:
            return EngineSize()
        return EngineSize(*(each if each is not None and each > 0 else None for each in size))

    async def _read_load(self) -> EngineLoad | None:
        try:
            return load_in_gauges(await self.http.get(self.metrics_path), self.gauges)
        except WorkerFailed:
            return None
