"""The handler of GET /metrics: the metrics of this gateway process, or of all processes as one text."""

import asyncio
import socket
from contextlib import aclosing

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from gateway.adminapi.authorization import Authorization
from gateway.app import Gateway
from gateway.process.multiprocess import GatewayProcess
from gateway.telemetry.exposition import expose_in_slices
from gateway.web.metrics_merge import merge_metrics, other_processes_metrics


class MetricsHandler:
    """Answers GET /metrics; the first of several processes answers for all of them."""

    def __init__(
        self, gateway: Gateway, process: GatewayProcess | None, authorization: Authorization
    ) -> None:
        self._metrics = gateway.metrics
        self._process = process
        self._authorization = authorization

    async def __call__(self, http: web.Request) -> web.StreamResponse:
        """Answer with all metrics. Raises Problem without authorization."""
        if http.transport is None or http.transport.get_extra_info("socket").family != socket.AF_UNIX:
            # Other processes of this gateway use its own socket.
            self._authorization.authorize_metrics(http)
        if self._process is None or self._process.number:
            return await self._own(http)
        return await self._of_all_processes(http, self._process)

    async def _of_all_processes(self, http: web.Request, process: GatewayProcess) -> web.Response:
        accept = http.headers.get("Accept", "")
        encode, content_type = choose_encoder(accept)
        asking = asyncio.create_task(other_processes_metrics(process, accept))
        own = b"".join([text async for text in expose_in_slices(self._metrics, encode)])
        texts = {process.number: own, **await asking}
        text = await asyncio.to_thread(merge_metrics, texts)
        response = web.Response(body=text, headers={"content-type": content_type})
        _compress(http, response)
        return response

    async def _own(self, http: web.Request) -> web.StreamResponse:
        """Send the metrics of this process in slices, so that streams continue between them."""
        encode, content_type = choose_encoder(http.headers.get("Accept", ""))
        response, complete = web.StreamResponse(headers={"content-type": content_type}), False
        _compress(http, response)
        await response.prepare(http)
        try:
            async with aclosing(expose_in_slices(self._metrics, encode)) as slices:
                async for text in slices:
                    await response.write(text)
            complete = True
        except ConnectionResetError:
            pass  # The client has left.
        finally:
            # A started answer cannot become an error; the cut connection shows the client that it is incomplete.
            if not complete and http.transport is not None:
                http.transport.abort()
        return response


def _compress(http: web.Request, response: web.StreamResponse) -> None:
    """Compress the response if the client accepts gzip: metrics shrink to a twentieth."""
    response.headers["vary"] = "Accept, Accept-Encoding"
    if "gzip" in http.headers.get("Accept-Encoding", ""):
        response.enable_compression(web.ContentCoding.gzip)
