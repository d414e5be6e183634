"""What stands in for SGLang in a pod: a scripted worker at the engine's address that requires the engine's key."""

import argparse
import asyncio
import signal
from collections.abc import Awaitable, Callable

from aiohttp import web

from tests.fakes.scripted_worker import Script, ScriptedWorker


class KeyedWorker(ScriptedWorker):
    """A scripted worker that answers only /health without its key."""

    def __init__(self, model: str, key: str) -> None:
        super().__init__(models=[model], script=Script(tokens=4))
        self._key = key

    @web.middleware
    async def _wait_while_frozen(
        self, http: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if http.path != "/health" and http.headers.get("authorization") != f"Bearer {self._key}":
            return web.json_response({"error": "no key"}, status=401)
        return await handler(http)


async def serve() -> None:
    """Serve until SIGTERM, by the flags of `python3 -m sglang.launch_server`."""
    parser = argparse.ArgumentParser()
    for flag in ("-m", "--host", "--served-model-name", "--api-key"):
        parser.add_argument(flag)
    parser.add_argument("--port", type=int)
    flags, _ = parser.parse_known_args()
    worker = KeyedWorker(flags.served_model_name, flags.api_key)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await worker.start(flags.port, flags.host)
    await ended.wait()
    await worker.stop()


asyncio.run(serve())
