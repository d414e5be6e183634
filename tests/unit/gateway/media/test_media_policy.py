"""Media are passed on as their content only: never as a URL, and never as the name of another tenant's upload."""

import json

import pytest

from gateway.domain.errors import BadRequest
from gateway.domain.request import Surface
from gateway.media.media_fetch import is_public
from gateway.media.media_policy import MediaPolicy
from gateway.settings.types import MediaHost, address_of
from gateway.web.openai.inference_requests import decode_openai_request

DATA = "data:image/png;base64,Y2F0"


def request(*parts, role="user"):
    body = {"model": "m", "messages": [{"role": role, "content": list(parts)}]}
    return decode_openai_request(Surface.CHAT, json.dumps(body).encode())


async def refusal(*parts, role="user"):
    with pytest.raises(BadRequest) as refused:
        await MediaPolicy().apply(request(*parts, role=role), None, None)
    assert refused.value.param == "messages"
    return refused.value.message


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "see http://169.254.169.254/"},
        {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}},
        {"type": "image_url", "image_url": DATA},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}},
        {"type": "image_url", "image_url": {"url": DATA}, "uuid": None},
        {"type": "thinking", "thinking": "file:///etc/passwd"},
        {"type": "image_url", "image_url": None},
    ],
)
async def test_content_is_passed_on_as_it_came(part):
    asked = request(part)
    assert await MediaPolicy().apply(asked, None, None) is asked


@pytest.mark.parametrize("role", ["user", "tool", "system"])
@pytest.mark.parametrize(
    "address",
    [
        *("http://169.254.169.254/latest/meta-data", "https://example.com/cat.png", "file:///etc/passwd"),
        *("/etc/passwd", "cat.png", "", " data:image/png;base64,AAAA", "DATA:image/png;base64,AAAA", "//x"),
    ],
)
async def test_an_address_is_refused_in_every_place_that_engines_look_at(address, role):
    for part in (
        {"type": "image_url", "image_url": {"url": address}},
        {"type": "image_url", "image_url": address},
        {"image_url": address},
        {"type": "text", "text": "x", "image_url": {"url": address}},
        {"type": "input_image", "image_url": address},
        {"type": "video_url", "video_url": {"url": address}},
        {"type": "audio_url", "audio_url": {"url": address}},
        {"type": "video", "video": [DATA, address]},
        {"type": "image", "image": [{"url": address}]},
        {"type": "file", "file": {"file_data": address}},
    ):
        assert "cannot be fetched" in await refusal(part, role=role)


@pytest.mark.parametrize("data", ["/etc/passwd", "file:///etc/passwd", "http://x", "../x", "~/x"])
async def test_audio_is_base64_and_no_path(data):
    assert "base64" in await refusal({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": DATA}, "uuid": "a cat"},
        {"type": "image_url", "image_url": None, "uuid": "a cat"},
        {"type": "image_url", "image_url": {"url": DATA, "content_hash": "0" * 64}},
        {"type": "image_embeds", "image_embeds": "AAAA"},
        {"type": "audio_embeds", "audio_embeds": {"x": "AAAA"}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ],
)
async def test_a_part_with_another_tenants_medium_or_with_tensors_is_refused(part):
    assert "send the content itself" in await refusal(part)


async def test_a_long_address_is_not_quoted_whole():
    assert len(await refusal({"type": "image_url", "image_url": {"url": "x" * 10_000}})) < 300


async def test_completions_have_no_media():
    asked = decode_openai_request(Surface.COMPLETIONS, b'{"model":"m","prompt":"http://x"}')
    assert await MediaPolicy().apply(asked, None, None) is asked


@pytest.mark.parametrize(
    ("address", "public"),
    [
        *((a, False) for a in ("127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0")),
        *((a, False) for a in ("::1", "fe80::1", "fd00:ec2::254", "::ffff:10.0.0.1", "::", "ff02::1", "224.0.0.1")),
        *((a, False) for a in ("64:ff9b::a9fe:a9fe", "2002:7f00:1::", "255.255.255.255", "2002:a9fe:a9fe::1")),
        *((a, True) for a in ("8.8.8.8", "2606:4700::1111", "64:ff9b::808:808")),
        ("no address", False),
    ],
)  # fmt: skip
def test_an_address_is_public_if_the_internet_routes_it(address, public):
    assert is_public(address_of(address)) is public


@pytest.mark.parametrize(
    ("listed", "host", "port", "covered"),
    [
        ("cdn.example.com", "cdn.example.com", 443, True),
        ("cdn.example.com", "CDN.example.com.", 80, True),
        ("cdn.example.com", "cdn.example.com", 22, False),
        ("cdn.example.com:22", "cdn.example.com", 22, True),
        ("cdn.example.com:22", "cdn.example.com", 443, False),
        ("cdn.example.com", "evil.cdn.example.com", 443, False),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "evilexample.com", 443, False),
        ("[::1]:90", "::1", 90, True),
        ("127.0.0.1", "127.0.0.1", 80, True),
    ],
)
def test_a_host_covers_itself_and_a_pattern_what_is_below_it(listed, host, port, covered):
    assert MediaHost(listed).covers(host, port) is covered


@pytest.mark.parametrize("text", ["", "*", "*.", "http://a", "a/b", "a b", "a@b", 5, None, "a:b", "-a", "a:"])
def test_what_is_no_host_is_refused(text):
    with pytest.raises(ValueError, match="expected a host"):
        MediaHost(text)


@pytest.mark.parametrize(
    "message",
    [
        {"content": [{"type": "image", "uri": "http://x/"}]},
        {"content": [{"type": "image", "path": "/etc/passwd"}]},
        {"content": [{"type": "image", "image_path": "/etc/passwd"}]},
        {"content": [{"type": "video_url", "video_url": {"url": DATA, "frames": ["http://x/"]}}]},
        {"content": [[{"type": "image", "image": "http://x/"}]]},
        {"content": [{"type": "text", "text": "", "more": [[{"image_url": {"url": "http://x/"}}]]}]},
        {"content": "hi", "images": ["/etc/passwd"]},
        {"content": "hi", "image_url": "http://x/"},
        {"content": "hi", "attachments": [{"url": "http://x/"}]},
        {"content": "hi", "file_id": "file-1"},
        {"content": "hi", "image_embeds": "AAAA"},
    ],
)
async def test_an_address_is_refused_wherever_a_message_has_it(message):
    body = json.dumps({"model": "m", "messages": [{"role": "user", **message}]}).encode()
    with pytest.raises(BadRequest) as refused:
        await MediaPolicy().apply(decode_openai_request(Surface.CHAT, body), None, None)
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi", "images": [DATA]},
        {"role": "assistant", "content": None, "audio": {"id": "audio_1"}},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": "{}"}, "url": "x"}],
        },
        {"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}},
    ],
)
async def test_fields_of_a_message_that_are_no_addresses_pass(message):
    asked = decode_openai_request(Surface.CHAT, json.dumps({"model": "m", "messages": [message]}).encode())
    assert await MediaPolicy().apply(asked, None, None) is asked


@pytest.mark.parametrize("piece", [".", "a.", "a:", " ", ".a ", "a/"])
async def test_long_values_of_unknown_fields_are_looked_at_once(piece):
    asked = request({"type": "text", "text": "a", "unknown": "-" + piece * 1_000_000 + "-"})
    assert await MediaPolicy().apply(asked, None, None) is asked


@pytest.mark.parametrize("data", ["/9j/4AAQSkZJRg==", "UklGRg==", "iVBORw0KGgo="])
async def test_base64_of_every_kind_of_medium_passes(data):
    asked = request({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}})
    assert await MediaPolicy().apply(asked, None, None) is asked
