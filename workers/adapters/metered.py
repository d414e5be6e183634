"""The base adapter for engines with OpenAI's API, a cheap /health, and gauges in Prometheus format.

    kind       gauges                                           longest prompt and answer
    llamacpp   /metrics, with its flag --metrics                /props
    tgi        /metrics                                         /info
    trtllm     /prometheus/metrics                              not reported
    lmdeploy   /metrics, with its flag --enable-metrics         not reported

These engines have no cache salt, so all tenants share their prefix caches.
"""

import re
from collections.abc import Mapping

from workers.adapter import WorkerReport, WorkerTarget, WorkerUnreachable
from workers.adapters.openai import ModelList, OpenAIAdapter
from workers.adapters.vllm import PROBES_PER_METRICS
from workers.load_reports.engine_loads import EngineLoad, load_in_gauges


class MeteredAdapter(OpenAIAdapter):
    """The base of WorkerAdapters of engines that report their requests in gauges."""

    metrics_path = "metrics"
    gauges: re.Pattern[bytes]
    """Gauges that together count the requests that run or wait."""

    def __init__(self, target: WorkerTarget) -> None:
        super().__init__(target)
        self._load: EngineLoad | None = None
        self._contexts: Mapping[str, int] | None = None
        self._probes = 0

    async def probe(self) -> WorkerReport:
        """Check that the worker serves, and read its load. Raises WorkerUnreachable."""
        try:
            await self.http.get_json("health", None)
        except WorkerUnreachable:
            self._contexts = None  # after a restart the engine may have another context
            raise
        listed = await self.models()
        if self._contexts is None:
            self._contexts = await self._context_lengths(listed)
        if self._probes % PROBES_PER_METRICS == 0:
            self._load = await self._read_load()
        self._probes += 1
        return WorkerReport(
            models=listed.names,
            context_lengths={**self._contexts, **listed.context_lengths},
            load=self._load,
        )

    async def longest_context(self) -> int | None:
        """Return the context length, of prompt and answer together; None if the engine does not report it."""
        return None

    async def _context_lengths(self, listed: ModelList) -> Mapping[str, int]:
        try:
            longest = await self.longest_context()
        except WorkerUnreachable:
            longest = None
        return dict.fromkeys(listed.names, longest) if longest is not None and longest > 0 else {}

    async def _read_load(self) -> EngineLoad | None:
        try:
            return load_in_gauges(await self.http.get(self.metrics_path), self.gauges)
        except WorkerUnreachable:
            return None
