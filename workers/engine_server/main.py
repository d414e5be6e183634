"""Runs one worker process: it starts, serves until it receives a signal, drains, and ends."""

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
"""Returns a context that is entered when the worker serves and left before it drains, e.g. a registration."""


def run(options: WorkerOptions, while_serving: ServingHook = lambda _: nullcontext()) -> int:
    """Run a worker until SIGTERM or SIGINT, and return the exit code.

    The code is 0, or 1 when the worker could not start, or 2 when the options cannot work.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve_until_signal(options, while_serving))
    except (EngineError, WorkerCannotListen) as err:
        print(f"radixgate worker: {err}", file=sys.stderr)
        return 2 if isinstance(err, ConfigInvalid) else 1
    return 0


async def _serve_until_signal(options: WorkerOptions, while_serving: ServingHook) -> None:
    stopping = asyncio.Event()
    async with serve(options) as serving:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        print(f"radixgate worker ready at {serving.url}", flush=True)
        async with while_serving(serving):
            await stopping.wait()
        await serving.worker.live_requests.drain(options.drain_seconds)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
