"""Answers of an exchange, over real sockets."""

import aiohttp
from aiohttp import web

from gateway.web.exchange import OneWriteAnswer


async def test_the_head_of_an_answer_leaves_together_with_its_first_bytes():
    sent = []

    async def handle(http):
        response = OneWriteAnswer(headers={"content-length": "5"})
        writer = await response.prepare(http)
        sent.append(writer.output_size)
        await response.write_eof(b"hello")
        sent.append(writer.output_size)
        return response

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with aiohttp.ClientSession() as http, http.get(f"http://{host}:{port}/") as answer:
        assert await answer.read() == b"hello"
    await runner.cleanup()
    before, after = sent
    assert not before
    assert after > len(b"hello")
