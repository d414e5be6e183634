"""One worker process: start, serve until told to stop, drain, end."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext

from workers.engine.errors import ConfigInvalid, EngineError
from workers.engine_server.options import WorkerOptions
from workers.engine_server.serving import ServingWorker, WorkerCannotListen, serve

ServingHook = Callable[[ServingWorker], AbstractAsyncContextManager[None]]
"""Entered when it serves, left before it drains."""


def run(options: WorkerOptions, beside: ServingHook = lambda _: nullcontext()) -> int:
    """Block until SIGTERM or SIGINT. Exit code 0, 1 when it could not start, 2 when the options cannot work."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve_until_told(options, beside))
    except (EngineError, WorkerCannotListen) as err:
        print(f"radixgate worker: {err}", file=sys.stderr)
        return 2 if isinstance(err, ConfigInvalid) else 1
    return 0


async def _serve_until_told(options: WorkerOptions, beside: ServingHook) -> None:
    told = asyncio.Event()
    async with serve(options) as serving:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, told.set)
        print(f"radixgate worker ready at {serving.url}", flush=True)
        async with beside(serving):
            await told.wait()
        await serving.worker.live.drain(options.drain_seconds)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
