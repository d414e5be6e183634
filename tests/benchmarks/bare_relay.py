"""The bare relay: aiohttp on uvloop in one process, the least that a gateway in Python can cost.

python -m tests.benchmarks.bare_relay WORKER_URL
"""

import asyncio
import sys

import aiohttp
import uvloop
from aiohttp import web

BODY_BYTES_MAX = 32 * 1024**2


async def serve(worker: str) -> None:
    """Serve on a free port until cancelled."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:

        async def relay(http: web.Request) -> web.StreamResponse:
            body = await http.read()
            headers = {"content-type": "application/json"}
            async with session.post(f"{worker}{http.path}", data=body, headers=headers) as answer:
                if answer.content_type != "text/event-stream":
                    whole = await answer.read()
                    return web.Response(status=answer.status, body=whole, content_type=answer.content_type)
                response = web.StreamResponse(status=answer.status)
                response.content_type = answer.content_type
                await response.prepare(http)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response

        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post("/v1/chat/completions", relay)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        host, port = runner.addresses[0][:2]
        print(f"relay ready at http://{host}:{port}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
