"""Speech to text, through a whole gateway: forms reach the worker as they came, answers come back as they were."""

import asyncio
import json

import aiohttp
import pytest

from tests.fakes.scripted_worker import ScriptedWorker
from tests.fakes.speech_worker import STREAM, WHOLE, SpeechWorker, named, parts_of
from tests.integration.dispatch.test_provider_overflow import CONSENTS, settings
from tests.integration.web.test_openai_sdk import use_sdk

SOUND = bytes(range(256)) * 40 + b"\r\n--no boundary\r\n"
PATHS = ["audio/transcriptions", "audio/translations"]


def form(*more, model="m", file=SOUND):
    """As clients send it."""
    written = aiohttp.FormData(quote_fields=False)
    written.add_field("model", model)
    for name, value in more:
        written.add_field(name, value)
    written.add_field("file", file, filename="a voice.mp3", content_type="audio/mpeg")
    return written


def post(running, path="audio/transcriptions", data=None, headers=(), tenant="acme"):
    data = data if data is not None else form()
    return running.http.post(
        f"{running.url}/v1/{path}", data=data, headers={**running.headers(tenant), **dict(headers)}
    )


async def refusal(answer):
    error = (await answer.json())["error"]
    return answer.status, error["code"], error["param"]


@pytest.mark.parametrize("kind", ["sglang", "vllm", "openai"])
@pytest.mark.parametrize("prefix", ["/v1", ""])
@pytest.mark.parametrize("path", PATHS)
async def test_every_part_reaches_the_worker_as_it_came(gateway, kind, prefix, path):
    async with SpeechWorker() as worker, gateway(worker, kind=kind) as running:
        data = form(
            ("prompt", "ünïcode"),
            ("timestamp_granularities[]", "word"),
            ("timestamp_granularities[]", "segment"),
            ("cache_salt", "another tenant's"),
            ("vllm_xargs", "{}"),
            ("priority", "-1"),
        )
        async with running.http.post(
            f"{running.url}{prefix}/{path}", data=data, headers=running.headers()
        ) as answer:
            assert answer.status == 200, await answer.text()
        (seen,) = worker.seen
        assert seen.body["path"] == f"/v1/{path}"
        assert seen.headers["x-request-id"] == answer.headers["x-request-id"]
        assert "authorization" not in seen.headers
        *fields, (head, content) = seen.body["parts"]
        assert [(name.split("\r\n")[0], value) for name, value in fields] == [
            (named("model"), b"m"),
            (named("prompt"), "ünïcode".encode()),
            (named("timestamp_granularities[]"), b"word"),
            (named("timestamp_granularities[]"), b"segment"),
        ]
        assert head == f'{named("file")}; filename="a voice.mp3"\r\nContent-Type: audio/mpeg'
        assert content == SOUND
        await running.until(lambda: running.idle)


@pytest.mark.parametrize("what", WHOLE)
async def test_an_answer_comes_back_with_its_bytes_and_its_content_type(gateway, what):
    async with SpeechWorker() as worker, gateway(worker) as running:
        async with post(running, data=form(("response_format", what))) as answer:
            assert (answer.headers["content-type"], await answer.read()) == WHOLE[what]


async def test_a_stream_comes_back_as_it_was_and_its_usage_is_what_it_costs(gateway, records):
    async with SpeechWorker() as worker, gateway(worker, kind="openai") as running:
        async with post(running, data=form(("stream", "true"))) as answer:
            assert answer.content_type == "text/event-stream"
            assert await answer.read() == STREAM
        await running.until(lambda: records)
    assert (records[0].charged.prompt_tokens, records[0].charged.output_tokens) == (14, 5)
    assert (records[0].surface, records[0].stream) == ("audio/transcriptions", True)


@pytest.mark.parametrize(("what", "used"), [("json", (14, 5)), ("verbose_json", (0, 0)), ("srt", (0, 0))])
async def test_it_costs_the_tokens_that_the_worker_reports_or_none(gateway, records, what, used):
    async with SpeechWorker() as worker, gateway(worker) as running:
        async with post(running, data=form(("response_format", what), ("user", "someone"))) as answer:
            await answer.read()
        await running.until(lambda: records)
    assert (records[0].charged.prompt_tokens, records[0].charged.output_tokens) == used
    assert (records[0].user, records[0].code) == ("someone", "ok")


VLLM_USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
VLLM_FRAMES = [
    b"data: %b\n\n" % json.dumps({"object": "transcription.chunk", **more}).encode()
    for more in ({"choices": [{"delta": {"content": "hi"}}]}, {"choices": [], "usage": VLLM_USAGE})
]


@pytest.mark.parametrize(
    "asked", [(), (("stream_include_usage", "true"),)], ids=["not asked for", "asked for"]
)
async def test_vllm_is_always_asked_for_usage_of_a_stream(gateway, records, asked):
    async with SpeechWorker() as worker, gateway(worker, kind="vllm") as running:
        worker.stream = b"".join(VLLM_FRAMES) + b"data: [DONE]\n\n"
        async with post(running, data=form(("stream", "true"), *asked)) as answer:
            expected = worker.stream if asked else VLLM_FRAMES[0] + b"data: [DONE]\n\n"
            assert await answer.read() == expected
        await running.until(lambda: records)
        heads = [head for head, _ in worker.seen[0].body["parts"]]
        assert [head.startswith(named("stream_include_usage")) for head in heads].count(True) == 1
    assert (records[0].charged.prompt_tokens, records[0].charged.output_tokens) == (7, 2)


async def test_requests_are_counted_and_a_limit_refuses_the_next_one(gateway):
    async with SpeechWorker() as worker, gateway(worker, limits=[{"requests": 1, "per": "day"}]) as running:
        async with post(running) as answer:
            assert answer.status == 200
        async with post(running) as answer:
            assert answer.status == 429
        async with post(running, tenant="globex") as answer:
            assert answer.status == 200
        assert len(worker.seen) == 2


async def test_no_request_gets_in_without_a_key(gateway):
    async with SpeechWorker() as worker, gateway(worker) as running:
        async with running.http.post(f"{running.url}/v1/audio/transcriptions", data=form()) as answer:
            assert await refusal(answer) == (401, "invalid_api_key", None)
        assert not worker.seen


async def test_an_alias_becomes_the_models_own_name(gateway):
    models = json.dumps([{"name": "m", "aliases": ["whisper-1"]}])
    async with SpeechWorker() as worker, gateway(worker, models=models) as running:
        async with post(running, data=form(model="whisper-1")) as answer:
            assert answer.status == 200
        assert worker.seen[0].body["parts"][0] == (named("model"), b"m")


async def test_a_worker_that_fails_before_its_first_byte_is_replaced_by_another(gateway):
    async with SpeechWorker() as one, SpeechWorker() as other, gateway(one, other) as running:
        one.then(break_after=0)
        for _ in range(2):
            async with post(running) as answer:
                assert (answer.status, await answer.read()) == (200, WHOLE["json"][1])
        assert one.seen
        assert [seen.body["parts"][-1][1] for seen in other.seen] == [SOUND, SOUND]


async def test_a_client_that_leaves_stops_the_worker_and_frees_everything(gateway):
    async with SpeechWorker() as worker, gateway(worker) as running:
        worker.then(silent=True)
        asking = asyncio.create_task(post(running).__aenter__())
        await running.until(lambda: worker.seen)
        asking.cancel()
        await worker.seen[0].done.wait()
        assert worker.seen[0].ended == "aborted"
        await running.until(lambda: running.idle)


async def test_a_workers_refusal_is_answered_in_our_format(gateway):
    async with SpeechWorker() as worker, gateway(worker) as running:
        worker.then(status=400, body={"error": {"message": "no such language", "param": "language"}})
        async with post(running) as answer:
            assert (await answer.json())["error"]["message"] == "no such language"
            assert answer.status == 400


async def test_a_worker_without_transcriptions_is_a_404_that_names_the_url(gateway, embedded, model_settings):
    async with gateway(*embedded, kind="embedded", **model_settings) as running:
        async with post(running, data=form(model="tiny", file=bytes(3_000_000))) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (404, "not_found")
            assert "audio/transcriptions" in error["message"]


BOUNDARY = "0123456789"
MULTIPART = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


def written(*parts, end="--\r\n"):
    """(head, content) of each."""
    body = b"".join(f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + content + b"\r\n" for head, content in parts)
    return body + f"--{BOUNDARY}{end}".encode()


MODEL, FILE = (named("model"), b"m"), (f'{named("file")}; filename="a.wav"', SOUND)
REFUSED = {
    "json": (b'{"model":"m"}', {"content-type": "application/json"}, None),
    "no content type": (written(MODEL, FILE), {"content-type": ""}, None),
    "no boundary": (written(MODEL, FILE), {"content-type": "multipart/form-data"}, None),
    "another boundary": (written(MODEL, FILE), {"content-type": "multipart/form-data; boundary=z"}, None),
    "nothing": (b"", MULTIPART, None),
    "no end": (written(MODEL, FILE)[:-300], MULTIPART, None),
    "not quite an end": (written(MODEL, FILE)[:-4], MULTIPART, None),
    "no model": (written(FILE), MULTIPART, "model"),
    "two models": (written(MODEL, MODEL, FILE), MULTIPART, "model"),
    "two models of which one is hidden": (
        written((named("model[]"), b"z"), MODEL, FILE),
        MULTIPART,
        "model",
    ),
    "an empty model": (written((named("model"), b""), FILE), MULTIPART, "model"),
    "no file": (written(MODEL), MULTIPART, "file"),
    "two files": (written(MODEL, FILE, FILE), MULTIPART, "file"),
    "a file by its address": (written(MODEL, (named("file"), b"http://10.0.0.1/")), MULTIPART, "file"),
    "another address": (written(MODEL, FILE, (named("audio_url"), b"http://x/")), MULTIPART, "audio_url"),
    "a path": (written(MODEL, FILE, (named("file_path"), b"/etc/passwd")), MULTIPART, "file_path"),
    "a voice by its address": (
        written(MODEL, FILE, (named("known_speaker_references[]"), b"http://x/")),
        MULTIPART,
        "known_speaker_references",
    ),
    "a file of others": (written(MODEL, FILE, (named("file_id"), b"file-1")), MULTIPART, "file_id"),
    "no name": (written(MODEL, FILE, ("Content-Disposition: form-data", b"x")), MULTIPART, None),
    "a form in a form": (
        written(MODEL, FILE, (named("x") + "\r\nContent-Type: multipart/mixed; boundary=y", b"")),
        MULTIPART,
        None,
    ),
    "a strange charset": (written((named("_charset_"), b"x" * 40), MODEL, FILE), MULTIPART, None),
    "many parts": (written(MODEL, FILE, *[(named("x"), b"")] * 100), MULTIPART, None),
    "a long field": (written(MODEL, FILE, (named("prompt"), b"x" * 5_000_000)), MULTIPART, "prompt"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_no_such_form_is_refused_before_a_worker_gets_a_call(gateway, name):
    body, headers, param = REFUSED[name]
    async with SpeechWorker() as worker, gateway(worker) as running:
        async with post(running, data=body, headers=headers) as answer:
            assert await refusal(answer) == (400, "invalid_request", param)
        assert not worker.seen
        assert running.idle


async def chunks(body):
    """Without a length."""
    for at in range(0, len(body), 65536):
        yield body[at : at + 65536]


@pytest.mark.parametrize("sent", [bytes, chunks], ids=["at once", "in chunks"])
async def test_a_file_may_be_so_large_and_no_larger(gateway, sent):
    bounds = {"requests.body_bytes_max": 1_000_000}
    async with SpeechWorker() as worker, gateway(worker, **bounds) as running:
        for size, status in ((1_000_000, 413), (990_000, 200)):
            body = written(MODEL, (FILE[0], bytes(size)))
            async with post(running, data=sent(body), headers=MULTIPART) as answer:
                assert answer.status == status
        assert len(worker.seen) == 1


async def test_a_file_of_many_megabytes_arrives_whole(gateway):
    sound = bytes(range(251)) * 100_000
    async with SpeechWorker() as worker, gateway(worker) as running:
        async with post(running, data=form(file=sound)) as answer:
            assert answer.status == 200
        assert worker.seen[0].body["parts"][-1][1] == sound


async def test_a_key_of_the_clients_own_is_for_one_content(gateway):
    key = {"idempotency-key": "k"}
    async with SpeechWorker() as worker, gateway(worker) as running:
        async with post(running, headers=key) as answer:
            assert answer.status == 200
        await running.until(lambda: running.idle)
        async with post(running, headers=key) as answer:
            assert answer.status == 200
        await running.until(lambda: running.idle)
        async with post(running, data=form(file=SOUND + b"\0"), headers=key) as answer:
            assert (answer.status, len(worker.seen)) == (422, 2)


async def test_a_worker_gets_the_name_of_a_file_in_one_form(gateway):
    names = {
        "filename*=utf-8''%0D%0A%22%C3%AF.wav": "%0D%0A%22ï.wav",
        'filename="naïve.wav"': "naïve.wav",
        r'filename="a\"b\\.wav"': "a%22b%5C.wav",
    }
    async with SpeechWorker() as worker, gateway(worker) as running:
        for said, expected in names.items():
            body = written(MODEL, (f"{named('file')}; {said}", SOUND))
            async with post(running, data=body, headers=MULTIPART) as answer:
                assert answer.status == 200
            assert worker.seen[-1].body["parts"][1] == (f'{named("file")}; filename="{expected}"', SOUND)


@pytest.mark.parametrize("said", ["form-data; name=file; filename*=a:b", "form-data; ;;=", "", "attachment"])
async def test_a_part_that_names_itself_otherwise_is_refused(gateway, said):
    body = written(MODEL, (f"Content-Disposition: {said}", SOUND))
    async with SpeechWorker() as worker, gateway(worker) as running:
        async with post(running, data=body, headers=MULTIPART) as answer:
            assert answer.status == 400
        assert not worker.seen


async def test_another_model_answers_where_the_first_ones_worker_fails(gateway):
    models = json.dumps([{"name": "m", "fallbacks": ["n"]}, {"name": "n"}])
    async with SpeechWorker() as one, SpeechWorker(["n"]) as other:
        async with gateway(one, other, models=models) as running:
            one.then(break_after=0)
            async with post(running) as answer:
                assert (answer.status, await answer.read()) == (200, WHOLE["json"][1])
            assert other.seen[0].body["parts"][0] == (named("model"), b"n")


async def test_a_split_divides_recordings(gateway):
    models = json.dumps([{"name": "m", "splits": {"a": 1, "b": 1}}])
    async with SpeechWorker(["a"]) as one, SpeechWorker(["b"]) as other:
        async with gateway(one, other, models=models) as running:
            for number in range(12):
                async with post(running, data=form(file=SOUND + b"%d" % number)) as answer:
                    assert answer.status == 200
            assert len(one.seen) > 1
            assert len(other.seen) > 1
            assert {dict(seen.body["parts"])[named("model")] for seen in one.seen} == {b"a"}


async def test_a_provider_gets_nothing_that_identifies_the_client(gateway):
    async with SpeechWorker() as here, SpeechWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs)) as running:
            here.then(break_after=0)
            data = form(("user", "jane"), ("metadata[team]", "a"), ("language", "en"), model="gpt")
            async with post(running, data=data) as answer:
                assert (answer.status, await answer.read()) == (200, WHOLE["json"][1])
            (seen,) = theirs.seen
            heads = [head.partition("\r\n")[0] for head, _ in seen.body["parts"]]
            assert heads[:2] == [named("model"), named("language")]
            assert (len(heads), seen.body["parts"][0][1]) == (3, b"their/m")
            async with post(running, tenant="globex") as answer:
                assert (answer.status, len(theirs.seen)) == (502, 1)


async def test_batches_do_not_take_it(gateway, tmp_path):
    database = {"database.url": f"sqlite:///{tmp_path}/radixgate.db"}
    asked = {"input_file_id": "f", "endpoint": "/v1/audio/transcriptions", "completion_window": "24h"}
    async with ScriptedWorker() as worker, gateway(worker, **database) as running:
        async with running.http.post(
            f"{running.url}/v1/batches", json=asked, headers=running.headers()
        ) as answer:
            assert await refusal(answer) == (400, "invalid_request", "endpoint")


@pytest.mark.parametrize("major", ["2", "3"])
async def test_the_sdk_transcribes_and_translates_unchanged(gateway, major):
    async with SpeechWorker(["tiny"]) as worker, gateway(worker) as running:
        await use_sdk(major, ["speech_client.py"], running.url, running.keys["acme"].text)
        heads = [head.split("\r\n")[0] for head, _ in worker.seen[0].body["parts"]]
        assert heads.count(named("timestamp_granularities[]")) == 2
        assert named("include[]") in heads
        assert any(head.startswith(f"{named('file')}; filename=") for head in heads)


def test_the_fake_reads_forms():
    assert parts_of(MULTIPART["content-type"], written(MODEL, FILE)) == [MODEL, FILE]
