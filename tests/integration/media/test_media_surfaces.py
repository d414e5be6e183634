"""No API lets an address or a path of media reach a worker. A whole gateway."""

import json

import pytest
from aiohttp import FormData

from tests.fakes.scripted_worker import ScriptedWorker

ADDRESS = "http://169.254.169.254/latest"
PATH = "/etc/passwd"
DATA = "data:image/png;base64,Y2F0"

PARTS = {
    "uri": {"type": "image", "uri": ADDRESS},
    "path": {"type": "image", "path": PATH},
    "image_path": {"type": "image", "image_path": PATH},
    "frames": {"type": "video_url", "video_url": {"url": DATA, "frames": [DATA, ADDRESS]}},
    "image": {"type": "image", "image": [DATA, PATH]},
    "source": {"type": "image", "source": {"type": "url", "src": ADDRESS}},
    "an unknown name with an address": {"type": "image", "href": ADDRESS},
    "an unknown name with a path": {"type": "text", "text": "", "load_from": PATH},
    "an unknown name with a file's name": {"type": "image", "load_from": "cat.png"},
    "an unknown name with a share": {"type": "image", "load_from": "\\\\host\\share"},
    "an unknown name with a host": {"type": "image", "load_from": "169.254.169.254/latest"},
    "audio data": {"type": "input_audio", "input_audio": {"data": ADDRESS, "format": "wav"}},
    "a file": {"type": "file", "file": {"file_data": ADDRESS, "filename": "a.pdf"}},
    "a file by its URL": {"type": "file", "file_url": ADDRESS},
    "another tenant's medium": {"type": "image_url", "image_url": {"url": DATA}, "uuid": "cat"},
    "a part in a list in a list": [[{"type": "image", "image": ADDRESS}]],
    "data of an image": {"type": "image", "source": {"type": "base64", "data": ADDRESS}},
    "a part in a text": {"type": "text", "text": {"image_url": {"url": ADDRESS}}},
}
MESSAGES = {
    "images": {"images": [PATH]},
    "image_url": {"image_url": ADDRESS},
    "attachments": {"attachments": [{"link": ADDRESS}]},
    "an unknown name": {"picture": ADDRESS},
    "file_id": {"file_id": "file-1"},
    "a part in place of parts": {"content": {"type": "image", "image": PATH}},
}
EMBEDDED = {
    "input": [{"image": PATH, "text": "a"}],
    "input with an unknown name": [{"picture": ADDRESS}],
    "input with a list": [[{"image_url": {"url": ADDRESS}}]],
}


def asked(message):
    return {"messages": [{"role": "user", "content": "hi", **message}]}


def in_content(part):
    return asked({"content": [{"type": "text", "text": "a?"}, part]})


REFUSED = {
    **{f"chat, {name}": ("chat/completions", in_content(part)) for name, part in PARTS.items()},
    **{f"chat message, {name}": ("chat/completions", asked(more)) for name, more in MESSAGES.items()},
    **{f"embeddings, {name}": ("embeddings", in_content(part)) for name, part in PARTS.items()},
    **{f"embeddings message, {name}": ("embeddings", asked(more)) for name, more in MESSAGES.items()},
    **{f"embeddings, {name}": ("embeddings", {"input": value}) for name, value in EMBEDDED.items()},
    **{f"tokenize, {name}": ("tokenize", in_content(part)) for name, part in PARTS.items()},
    "rerank": ("rerank", {"query": "a", "documents": [{"content": [PARTS["image"]]}]}),
    "rerank, query": ("rerank", {"query": {"content": [PARTS["source"]]}, "documents": ["a"]}),
    "score": ("score", {"data_1": "a", "data_2": {"content": [PARTS["uri"]]}}),
    "moderations": ("moderations", {"input": [{"type": "image_url", "image_url": {"url": ADDRESS}}]}),
    "moderations, unknown name": ("moderations", {"input": [{"type": "image", "href": ADDRESS}]}),
    "speech": ("audio/speech", {"input": "a", "voice": {"ref_audio": ADDRESS}}),
    "speech, unknown name": ("audio/speech", {"input": "a", "voice": {"sample": PATH}}),
    "messages": (
        "messages",
        {
            "max_tokens": 4,
            **in_content({"type": "image", "source": {"type": "url", "url": ADDRESS}}),
        },
    ),
    "messages, a document": (
        "messages",
        {
            "max_tokens": 4,
            **in_content({"type": "document", "source": {"type": "url", "url": ADDRESS}}),
        },
    ),
    **{
        f"responses, {name}": (
            "responses",
            {"input": [{"role": "user", "content": [part]}]},
        )
        for name, part in {
            "image": {"type": "input_image", "image_url": ADDRESS},
            "file": {"type": "input_file", "file_data": PATH, "filename": "a"},
            "file by its URL": {"type": "input_file", "file_url": ADDRESS},
            "file by its name": {"type": "input_file", "file_id": "file-1"},
            "audio": {"type": "input_audio", "input_audio": {"data": PATH, "format": "wav"}},
        }.items()
    },
}

TOP_LEVEL = {
    "image_data": [ADDRESS],
    "video_data": PATH,
    "multi_modal_data": {"image": [PATH]},
    "images": [ADDRESS],
    "mm_items": [{"location": ADDRESS}],
    "ref_audio": ADDRESS,
}
BODIES = {
    "chat/completions": asked({}),
    "completions": {"prompt": "hi"},
    "messages": {"max_tokens": 4, **asked({})},
    "responses": {"input": "hi"},
    "embeddings": {"input": "hi"},
    "audio/speech": {"input": "hi", "voice": "alloy"},
}


async def status(running, path, body):
    async with running.http.post(
        f"{running.url}/v1/{path}", json={"model": "m", **body}, headers=running.headers()
    ) as answer:
        return answer.status, await answer.text()


async def test_an_address_in_any_part_of_any_api_is_refused(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        answers = {name: await status(running, path, body) for name, (path, body) in REFUSED.items()}
    assert {name: answer for name, answer in answers.items() if answer[0] != 400} == {}
    assert worker.seen == []


@pytest.mark.parametrize("path", BODIES)
async def test_fields_for_media_beside_the_messages_stay_with_the_gateway(gateway, path):
    worker = ScriptedWorker()
    worker.others = {"/v1/embeddings": ("application/json", b"{}"), "/v1/audio/speech": ("audio/mpeg", b"a")}
    async with worker, gateway(worker) as running:
        for name, value in TOP_LEVEL.items():
            await status(running, path, {**BODIES[path], name: value})
        assert all(not TOP_LEVEL.keys() & seen.body.keys() for seen in worker.seen)


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_the_operators_consent_to_a_field_is_none_to_addresses_in_it(gateway, path):
    consent = {"requests.pass_fields": json.dumps([*TOP_LEVEL])}
    async with ScriptedWorker() as worker, gateway(worker, **consent) as running:
        for name, value in TOP_LEVEL.items():
            assert (await status(running, path, {**BODIES[path], name: value}))[0] == 400, name
        assert worker.seen == []
        assert (await status(running, path, {**BODIES[path], "image_data": [DATA]}))[0] == 200
        assert worker.seen[0].body["image_data"] == [DATA]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", ADDRESS),
        ("file_url", ADDRESS),
        ("audio_path", PATH),
        ("known_speaker_references[]", ADDRESS),
        ("known_speaker_references[]", "voice.wav"),
        ("file", PATH),
    ],
)
async def test_an_address_in_a_form_is_refused(gateway, name, value):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        form = FormData({"model": "m", name: value})
        if name != "file":
            form.add_field("file", b"RIFF", filename="a.wav")
        async with running.http.post(
            f"{running.url}/v1/audio/transcriptions", data=form, headers=running.headers()
        ) as answer:
            assert answer.status == 400, await answer.text()
        assert worker.seen == []


async def test_texts_with_addresses_and_names_of_files_pass(gateway):
    parts = [
        {"type": "text", "text": ADDRESS, "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "image_url", "image_url": {"url": DATA, "detail": "low", "format": "image/png"}},
        {"type": "file", "file": {"file_data": DATA, "filename": "/a/b.pdf"}},
    ]
    cited = [{"type": "url_citation", "url_citation": {"url": ADDRESS, "title": "a", "start_index": 0}}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "a", "annotations": cited},
        {"role": "tool", "tool_call_id": "call/1", "name": "a.py", "content": PATH},
    ]
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"$schema": ADDRESS, "url": ADDRESS}}}
    ]
    async with ScriptedWorker() as worker, gateway(worker) as running:
        answer = await status(running, "chat/completions", {"messages": messages, "tools": tools})
        assert answer[0] == 200, answer
        assert worker.seen[0].body["messages"] == messages
