"""Forms pass through: every part that is not the gateway's reaches the worker as it was, however the bytes came."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.domain.errors import GatewayError
from gateway.domain.memory_budget import MemoryBudget
from gateway.domain.request import Surface
from gateway.web.dialect_factory import dialect_factory
from gateway.web.openai.audio_forms import FormExchange
from gateway.web.openai.inference_requests import GATEWAY_OWNED
from tests.fakes.speech_worker import named, parts_of
from tests.property.test_fidelity import ADAPTERS, MEDIA
from workers.adapter import WorkerCall
from workers.adapters import multipart

BOUNDARY = b"bound"
NAMES = st.text("abcdefgxyz_-[]. äß日0123456789", min_size=1).filter(
    lambda name: not MEDIA.search(name) and name == name.strip() and name not in ("file", "model")
)
OWNED = st.sampled_from(sorted(GATEWAY_OWNED)) | st.sampled_from(["rid[x]", "vllm_xargs.y"])
ALMOST = st.lists(
    st.sampled_from([b"\r\n--bound", b"\r\n--boun", b"\r\n", b"--", b"d", b"\0\xff", b"x" * 999])
)
CONTENTS = (st.binary(max_size=300) | ALMOST.map(b"".join)).filter(
    lambda c: b"\r\n--bound" not in b"\r\n" + c
)
FIELDS = st.tuples(NAMES | OWNED, CONTENTS)


def written(parts):
    return b"".join(b"--%b\r\n%b\r\n\r\n%b\r\n" % (BOUNDARY, head.encode(), body) for head, body in parts) + (
        b"--%b--\r\n" % BOUNDARY
    )


class Protocol(BaseProtocol):
    """A connection, with the bounds of aiohttp's."""

    max_field_size, max_headers = 8190, 128
    ssl_context = peername = sockname = None


async def read(body, cuts=(), key=None):
    """What the gateway makes of a form that comes in such pieces."""
    loop = asyncio.get_running_loop()
    protocol = Protocol(loop)
    protocol.connection_made(asyncio.Transport())
    content = StreamReader(protocol, 2**16, loop=loop)
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
    if key is not None:
        headers["idempotency-key"] = key
    http = make_mocked_request(
        "POST", "/v1/audio/transcriptions", headers=headers, protocol=protocol, payload=content
    )
    memory = MemoryBudget(10_000_000)
    exchange = FormExchange(
        http,
        dialect_factory(Surface.TRANSCRIPTIONS, None),
        find_address=lambda _: None,
        memory=memory,
        body_bytes_max=10_000_000,
        body_seconds_max=30.0,
        unread_seconds_max=30.0,
    )
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]

    async def send():
        for start, end in pairwise(places):
            content.feed_data(body[start:end])
            await asyncio.sleep(0)
        content.feed_eof()

    sending = asyncio.create_task(send())
    try:
        return await exchange.read_request(SimpleNamespace(id="t", key_id="k"))
    finally:
        await sending
        exchange.memory.release()
        assert memory.bytes_held == 0


@given(
    before=st.lists(FIELDS, max_size=4),
    after=st.lists(FIELDS, max_size=4),
    sound=CONTENTS,
    kind=st.sampled_from(
        ["", "\r\nContent-Type: audio/mpeg", "\r\ncontent-type: audio/x;  a=b\r\nX-More: ü"]
    ),
    adapter=st.sampled_from(ADAPTERS),
    cuts=st.lists(st.integers(0, 2000), max_size=8),
)
async def test_every_part_that_is_not_the_gateways_arrives_as_it_was(
    before, after, sound, kind, adapter, cuts
):
    model = (named("model"), b"alias")
    file = (f'{named("file")}; filename="ein läut.mp3"{kind}', sound)
    sent = [model, *((named(name), body) for name, body in before), file]
    sent += [(named(name), body) for name, body in after]
    assume(
        sum(name.partition(".")[0].partition("[")[0] in ("file", "model") for name, _ in before + after) == 0
    )
    request = await read(written(sent), cuts)
    call = WorkerCall(
        id="r", path="p", fields=request.fields, model="m", stream=request.stream, form=request.form
    )
    content_type, pieces = multipart.multipart_buffers(adapter.form(call, call.form))
    got = parts_of(content_type, b"".join(map(bytes, pieces)))
    names = {f"{named(name)}" for name in GATEWAY_OWNED} | {named("rid[x]"), named("vllm_xargs.y")}
    expected = [(head, body) for head, body in sent if head not in names]
    assert got == [(named("model"), b"m"), *expected[1:]]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(
    spoilt=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 40), st.binary(max_size=12)), max_size=4),
    cuts=st.lists(st.integers(0, 400), max_size=4),
)
async def test_what_is_no_form_is_refused_and_nothing_of_it_is_held(spoilt, cuts):
    body = written(
        [(named("model"), b"m"), (named("language"), b"en"), (f'{named("file")}; filename="a"', b"sound")]
    )
    for at, length, instead in spoilt:
        body = body[:at] + instead + body[at + length :]
    try:
        refused = None if (await read(body, cuts)).model else 0
    except GatewayError as err:
        refused = err.status
    assert refused in (None, 400)


async def test_a_key_is_for_one_content_however_it_is_cut():
    def of(*parts):
        return [(named("model"), b"m"), *parts, (f'{named("file")}; filename="a"', b"sound")]

    one, other = of((named("x"), b"ab"), (named("x"), b"c")), of((named("x"), b"a"), (named("x"), b"bc"))
    same, again, different = [
        (await read(written(form), key="k")).fields["file"] for form in (one, one, other)
    ]
    assert bytes(same) == bytes(again) != bytes(different)
