"""A gateway that profiles itself while a file exists, and counts what each stage of a request leaves allocated.

    python -m tests.benchmarks.profiled_gateway DIRECTORY serve --config FILE

While `DIRECTORY/profile` exists the event loop runs under cProfile; when the file goes, the figures are written to
`DIRECTORY/figures`. While `DIRECTORY/stages` exists each step of a request is measured; the sums go to
`DIRECTORY/stage_figures` as JSON.
"""

import asyncio
import cProfile
import json
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, ClassVar

from gateway import pipeline
from gateway.cli.commands import serve
from gateway.telemetry.progress import Progress

LOOK_SECONDS = 0.02
"""How often the files are looked for."""


async def _watch(directory: Path) -> None:
    profile, profiling = cProfile.Profile(), False
    wanted, figures = directory / "profile", directory / "figures"
    stages = directory / "stages"
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if wanted.exists() and not profiling:
            profile.enable()
            profiling = True
        elif profiling and not wanted.exists():
            profile.disable()
            profile.dump_stats(figures)
            profile.clear()
            profiling = False
        if stages.exists() != _Stages.on:
            _Stages.on = not _Stages.on
            if not _Stages.on:
                (directory / "stage_figures").write_text(json.dumps(_Stages.sums))


class _Stages:
    """The sums of microseconds and of allocated blocks by step."""

    on = False
    sums: ClassVar["defaultdict[str, list[float]]"] = defaultdict(lambda: [0, 0.0, 0])


def _measure_steps() -> None:
    """Let Progress note the time and the interpreter's allocated blocks at every mark."""
    mark = Progress.mark
    last: dict[int, tuple[float, int]] = {}

    def begin_measured(*args: Any) -> Progress:
        progress = Progress(*args)
        if _Stages.on:
            last[id(progress)] = time.perf_counter(), sys.getallocatedblocks()
        return progress

    def mark_measured(self: Progress, step: str) -> None:
        mark(self, step)
        if _Stages.on and (before := last.get(id(self))) is not None:
            now = time.perf_counter(), sys.getallocatedblocks()
            sums = _Stages.sums[step]
            sums[0] += 1
            sums[1] += 1e6 * (now[0] - before[0])
            sums[2] += now[1] - before[1]
            last[id(self)] = time.perf_counter(), sys.getallocatedblocks()

    pipeline.Progress = begin_measured  # type: ignore[assignment, misc]
    Progress.mark = mark_measured  # type: ignore[method-assign]


def main() -> None:
    """Serve as the command line says, with the watch beside it."""
    directory, sys.argv = Path(sys.argv[1]), ["radixgate", *sys.argv[2:]]
    run_loop = serve.run_loop
    _measure_steps()

    async def watched(work: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(_watch(directory))
        try:
            return await work
        finally:
            task.cancel()

    serve.run_loop = lambda work: run_loop(watched(work))
    from gateway.__main__ import main as radixgate

    radixgate()


if __name__ == "__main__":
    main()
