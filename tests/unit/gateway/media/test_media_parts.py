"""Placeholder tokens of images and sounds in a prompt: they are part of its blocks."""

import asyncio
import json
from array import array
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.domain.errors import BadRequest
from gateway.domain.request import Surface
from gateway.domain.tenant import Plan, Tenant
from gateway.media.media_parts import MEDIA_MAX, MEDIA_TOKENS, PLACEHOLDER_BIT, media_tokens
from gateway.tokenization.encoder_threads import EncoderThreads
from gateway.tokenization.text_encoder import TextEncoder
from gateway.tokenization.tokenizer_encoder import TokenizerEncoder
from gateway.web.openai.inference_requests import decode_openai_request
from workers.engine import tiny_checkpoint

ACME = Tenant(id="acme", organisation="acme", key_id="k", plan=Plan(), group="tenant:acme")
CAT = {"type": "image_url", "image_url": {"url": "data:image/png;base64,Y2F0"}}
DOG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,ZG9n"}}
BEEP = {"type": "input_audio", "input_audio": {"data": "YmVlcA==", "format": "wav"}}


@pytest.fixture(scope="module")
def tokenizer_encoder(tmp_path_factory):
    checkpoint = tiny_checkpoint.build(tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=1)
    with ThreadPoolExecutor(1) as pool:
        yield TokenizerEncoder.from_directory(checkpoint, EncoderThreads(pool), key=1, memory_bytes_max=2**20)


@pytest.fixture(params=["tokenizer", "text"])
def encoder(request):
    return request.getfixturevalue("tokenizer_encoder") if request.param == "tokenizer" else TextEncoder()


def said(*parts):
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def prompt_of(encoder, *parts, length_max=None):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": said(*parts)}]}).encode()
    return asyncio.run(encoder.encode(decode_openai_request(Surface.CHAT, body), ACME, length_max))[0]


def units(encoder, *parts):
    """Tokens, or the bytes of canonical text."""
    prompt = prompt_of(encoder, *parts)
    return list(prompt.text if prompt.tokens is None else prompt.tokens)


def common(one, other):
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def test_the_same_image_gives_the_same_prompt_and_another_one_does_not(encoder):
    cat = units(encoder, "what is ", CAT, "this?")
    assert cat == units(encoder, "what is ", CAT, "this?")
    dog = units(encoder, "what is ", DOG, "this?")
    assert len(dog) == len(cat)
    assert cat != dog


def test_before_the_first_image_the_prompt_is_that_of_the_text_alone(encoder):
    plain, cat = units(encoder, "look at this, " * 20), units(encoder, "look at this, " * 20, CAT)
    # What closes the text differs: a line break or a quotation mark.
    assert common(plain, cat) >= 0.8 * len(plain)


def test_two_images_in_another_order_are_another_prompt(encoder):
    assert units(encoder, CAT, DOG) != units(encoder, DOG, CAT)


def test_an_image_costs_what_is_estimated_and_not_the_size_of_its_encoding(encoder):
    huge = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    assert MEDIA_TOKENS < prompt_of(encoder, "hi", huge).token_count < MEDIA_TOKENS + 100


def test_audio_is_a_medium_too(encoder):
    assert prompt_of(encoder, "hi", BEEP).token_count > MEDIA_TOKENS


def test_a_prompt_with_an_image_is_not_refused_for_an_estimated_length(tokenizer_encoder):
    prompt = prompt_of(tokenizer_encoder, "hi", CAT, length_max=64)
    assert not prompt.count_exact
    assert prompt_of(tokenizer_encoder, "hi", length_max=64).count_exact


def test_no_text_can_be_written_that_is_an_image(encoder):
    assert units(encoder, "<media 0>") != units(encoder, CAT)
    assert all(token >= PLACEHOLDER_BIT for token in media_tokens(bytes(16)))
    assert media_tokens(bytes(16)).typecode == array("I").typecode


def test_too_many_images_are_the_clients_mistake(encoder):
    prompt_of(encoder, *[CAT] * MEDIA_MAX)
    with pytest.raises(BadRequest, match="at most 256") as refused:
        prompt_of(encoder, *[CAT] * (MEDIA_MAX + 1))
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "kind",
    ["smell", ["image_url"], {"image_url": 1}, 1, None],
    ids=["word", "list", "object", "number", "null"],
)
def test_a_part_of_an_unknown_type_is_still_the_clients_mistake(tokenizer_encoder, kind):
    with pytest.raises(BadRequest, match="text part"):
        prompt_of(tokenizer_encoder, {"type": kind, "smell": "rose"})
