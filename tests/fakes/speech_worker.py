"""A ScriptedWorker with speech to text: it reads multipart forms and answers in their `response_format`."""

import asyncio
import json
from typing import Any

from aiohttp import web

from tests.fakes.scripted_worker import ScriptedWorker, Seen

PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
TOKENS = {
    "type": "tokens",
    "input_tokens": 14,
    "output_tokens": 5,
    "total_tokens": 19,
    "input_token_details": {"audio_tokens": 14, "text_tokens": 0},
}
SECONDS = {"type": "duration", "seconds": 3}
WHOLE = {
    "json": ("application/json", json.dumps({"text": "Grüße", "usage": TOKENS}, indent=1).encode()),
    "verbose_json": (
        "application/json",
        json.dumps(
            {"text": "hi", "language": "en", "duration": 3.0, "segments": [], "words": [], "usage": SECONDS}
        ).encode(),
    ),
    "text": ("text/plain; charset=utf-8", "Grüße\n".encode()),
    "srt": ("text/plain; charset=utf-8", b"1\n00:00:00,000 --> 00:00:03,000\nhi\n"),
    "vtt": ("text/vtt", b"WEBVTT\n\n00:00.000 --> 00:03.000\nhi\n"),
}


def frames(*events: dict[str, Any]) -> bytes:
    """Return the events as a server-sent event stream."""
    return b"".join(b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)


STREAM = frames(
    {"type": "transcript.text.delta", "delta": "Hello"},
    {"type": "transcript.text.delta", "delta": " there"},
    {"type": "transcript.text.done", "text": "Hello there", "usage": TOKENS},
)


def parts_of(content_type: str, body: bytes) -> list[tuple[str, bytes]]:
    """Return the head and the content of each part of a multipart form, byte for byte."""
    kind, _, boundary = content_type.partition("; boundary=")
    assert kind == "multipart/form-data"
    _, *parts, end = (b"\r\n" + body).split(b"\r\n--" + boundary.encode())
    assert end == b"--\r\n"
    cut = [part.removeprefix(b"\r\n").partition(b"\r\n\r\n") for part in parts]
    return [(head.decode("utf-8", "surrogateescape"), content) for head, _, content in cut]


def named(name: str) -> str:
    """Return the head of the form field with this name."""
    return f'Content-Disposition: form-data; name="{name}"'


class SpeechWorker(ScriptedWorker):
    """A worker for transcriptions and translations; `seen[-1].body["parts"]` has the parts of the last form."""

    def __init__(self, *more: Any) -> None:
        super().__init__(*more)
        self.others = dict.fromkeys(PATHS, ("", b""))  # a test may add paths whose bodies are JSON
        self.stream = STREAM  # the answer to a form that asks for a stream

    async def _other(self, http: web.Request) -> web.StreamResponse:
        if http.path not in PATHS:
            return await super()._other(http)
        script = self.script
        parts = parts_of(http.headers["content-type"], await http.read())
        seen = Seen(body={"parts": parts, "path": http.path}, headers=http.headers.copy())
        self.seen.append(seen)
        try:
            if script.silent:
                await asyncio.sleep(3600)
            if script.status != 200:
                return web.json_response(script.body, status=script.status)
            if script.break_after == 0:
                return self._cut(http, seen)
        except asyncio.CancelledError:
            seen.ended = "aborted"
            raise
        finally:
            seen.done.set()
        fields = {head.partition("\r\n")[0]: content for head, content in parts}
        if fields.get(named("stream")) == b"true":
            return web.Response(
                body=self.stream, headers={"content-type": "text/event-stream; charset=utf-8"}
            )
        kind, body = WHOLE.get(
            fields.get(named("response_format"), b"json").decode("utf-8", "replace"), WHOLE["json"]
        )
        return web.Response(body=body, headers={"content-type": kind})
