"""An OpenAI-compatible worker that follows a script, for tests of faults and of timing.

It answers every prompt with `tokens` words, reports usage, and records every request and how the request ended. The
script is one value that a test may replace between requests.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the worker does with a request."""

    status: int = 200
    """The status of the answer; with any other than 200 the body is `body`."""
    body: dict[str, Any] | None = None
    """The body of a refusal; `{}` stands for an empty one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """More headers of each answer."""
    tokens: int = 4
    """How many words each choice of the answer has."""
    frame_tokens: int = 1
    """How many words one frame has."""
    choices: int = 1
    """How many choices the answer has."""
    running_usage: bool = False
    """Each frame has the usage of its choice so far, where the request asks for it."""
    first_after: float = 0.0
    """Seconds before the first frame."""
    gap: float = 0.0
    """Seconds between two frames."""
    break_after: int | None = None
    """After so many frames the connection is cut; 0: before the first byte."""
    silent: bool = False
    """The worker takes the request and never answers."""
    until: asyncio.Event | None = None
    """The worker waits for this event before anything else."""
    second_frame_until: asyncio.Event | None = None
    """The worker waits for this event after the first frame."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """More fields of an answer that is no stream."""
    whole: bytes | None = None
    """The body of an answer that is no stream, in place of the usual one."""
    cached_tokens: int | None = 0
    """The cached tokens that usage reports; None: usage has no such field."""
    prompt_tokens: int = 10
    """The prompt tokens that usage reports."""
    usage_in_last_frame: bool = False
    """Usage stands in the frame of the last word, and not in a frame of its own."""
    finish_reason: str | None = "length"
    """The finish reason of the last choice."""
    last_frame: bytes = b"data: [DONE]\n\n"
    """The bytes with which streams end."""
    named: str | None = None
    """The model name in each frame; None: frames have no such field."""


@dataclass(slots=True)
class Seen:
    """One request as the worker received it, and how it ended."""

    body: dict[str, Any]
    headers: Mapping[str, str]
    ended: str = "running"
    """"running", "finished", "aborted" (the caller closed the connection) or "broken" (the script cut it)."""
    frames: int = 0
    """How many frames were sent."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the request has ended."""


class ScriptedWorker:
    """A worker on a real socket at `worker.url`: `async with ScriptedWorker() as worker`."""

    def __init__(self, models: Iterable[str] = ("m",), script: Script | None = None) -> None:
        self.models = list(models)
        self.script = script or Script()
        self.seen: list[Seen] = []  # every request, in the order of arrival
        self.others: dict[
            str, tuple[str, bytes]
        ] = {}  # further paths, each with the type and body of its answer
        self.other_status = 200  # the status of those answers
        self.ready = True  # False: probes are answered with 503
        self.instance: str | None = "first"  # the instance id of /server_info: another one means a restart
        self.listed: bytes | None = None  # the body of /v1/models, in place of the list of `models`
        self.kv_tokens_max: int | None = 100_000
        self.ranks = 1  # data-parallel ranks
        self.frozen: asyncio.Event | None = None  # until it is set nothing is sent, on any connection
        self.info: dict[str, Any] = {}  # more fields of /server_info
        self.url = ""
        self._runner: web.AppRunner | None = None

    def then(self, **changes: Any) -> None:
        """Change these fields of the script for all further requests."""
        self.script = replace(self.script, **changes)

    async def __aenter__(self) -> "ScriptedWorker":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        """Listen on the port, or on a free one."""
        app = web.Application(client_max_size=64 * 1024**2, middlewares=[self._wait_while_frozen])
        for path in ("/v1/chat/completions", "/v1/completions"):
            app.router.add_post(path, self._infer)
        for path in self.others:
            app.router.add_post(path, self._other)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/health", self._ready)
        app.router.add_get("/server_info", self._server_info)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, reuse_address=True).start()
        self.url = f"http://{host}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Stop listening, and abort the requests under way."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _wait_while_frozen(
        self, http: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self.frozen is not None:
            await self.frozen.wait()
        return await handler(http)

    async def _ready(self, http: web.Request) -> web.Response:
        return web.Response(status=200 if self.ready else 503)

    async def _models(self, http: web.Request) -> web.Response:
        if self.listed is not None:
            return web.Response(body=self.listed, content_type="application/json")
        return web.json_response(
            {"object": "list", "data": [{"id": m, "object": "model"} for m in self.models]}
        )

    async def _server_info(self, http: web.Request) -> web.Response:
        told = {
            "max_total_num_tokens": self.kv_tokens_max,
            "instance_id": self.instance,
            "dp_size": self.ranks,
            **self.info,
        }
        return web.json_response(told)

    async def _other(self, http: web.Request) -> web.Response:
        self.seen.append(Seen(body=await http.json(), headers=http.headers.copy(), ended="finished"))
        kind, body = self.others[http.path]
        return web.Response(status=self.other_status, body=body, content_type=kind)

    async def _infer(self, http: web.Request) -> web.StreamResponse:
        script, body = self.script, await http.json()
        seen = Seen(body=body, headers=http.headers.copy())
        self.seen.append(seen)
        try:
            return await self._answer(http, script, seen, chat=http.path.endswith("chat/completions"))
        except (asyncio.CancelledError, ConnectionResetError):
            seen.ended = "aborted"
            raise
        finally:
            seen.done.set()

    async def _answer(
        self, http: web.Request, script: Script, seen: Seen, *, chat: bool
    ) -> web.StreamResponse:
        if script.silent:
            await asyncio.sleep(3600)
        if script.until is not None:
            await script.until.wait()
        await asyncio.sleep(script.first_after)
        if script.status != 200:
            seen.ended = "finished"
            if script.body == {}:
                return web.Response(status=script.status, headers=script.headers)
            body = script.body or {"error": {"message": "scripted"}}
            return web.json_response(body, status=script.status, headers=script.headers)
        if script.break_after == 0:
            return self._cut(http, seen)
        if not seen.body.get("stream"):
            await asyncio.sleep(script.gap * script.tokens)
            seen.ended = "finished"
            if script.whole is not None:
                return web.Response(body=script.whole, content_type="application/json")
            return web.json_response(self._whole(script, seen, chat=chat), headers=script.headers)
        response = web.StreamResponse(headers={**script.headers, "content-type": "text/event-stream"})
        await response.prepare(http)
        for frame in self._frames(script, seen, chat=chat):
            if self.frozen is not None:
                await self.frozen.wait()
            await response.write(frame)
            seen.frames += 1
            if seen.frames == script.break_after:
                return self._cut(http, seen)
            if script.second_frame_until is not None:
                await script.second_frame_until.wait()
            await asyncio.sleep(script.gap)
        await response.write(script.last_frame)
        await response.write_eof()
        seen.ended = "finished"
        return response

    def _cut(self, http: web.Request, seen: Seen) -> web.Response:
        seen.ended = "broken"
        assert http.transport is not None
        http.transport.abort()
        return web.Response()

    def _frames(self, script: Script, seen: Seen, *, chat: bool) -> Iterable[bytes]:
        kind = "chat.completion.chunk" if chat else "text_completion"
        asked = seen.body.get("stream_options") or {}
        pieces = [
            (at, index)
            for at in range(0, script.tokens, script.frame_tokens)
            for index in range(script.choices)
        ]
        for at, index in pieces:
            end = min(at + script.frame_tokens, script.tokens)
            last = end == script.tokens
            text = "".join(f"w{number} " for number in range(at, end))
            choice: dict[str, Any] = {
                "index": index,
                "logprobs": None,
                "finish_reason": script.finish_reason if last else None,
            }
            choice |= {"delta": {"role": "assistant", "content": text}} if chat else {"text": text}
            usage = self._usage(script) if last and script.usage_in_last_frame else None
            if script.running_usage and asked.get("continuous_usage_stats"):
                usage = {**self._usage(script), "completion_tokens": end}
            named = {"model": script.named} if script.named is not None else {}
            yield _frame({"id": "x", "object": kind, **named, "choices": [choice], "usage": usage})
        if not script.usage_in_last_frame and asked.get("include_usage"):
            yield _frame({"id": "x", "object": kind, "choices": [], "usage": self._usage(script)})

    def _whole(self, script: Script, seen: Seen, *, chat: bool) -> dict[str, Any]:
        text = "".join(f"w{at} " for at in range(script.tokens))
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return {
            "id": "x",
            "object": "chat.completion",
            "choices": [choice],
            "usage": self._usage(script),
            **script.more,
        }

    def _usage(self, script: Script) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": script.prompt_tokens,
            "completion_tokens": script.tokens * script.choices,
            "total_tokens": script.prompt_tokens + script.tokens * script.choices,
        }
        if script.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": script.cached_tokens}
        return usage


def _frame(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"
