"""Long bodies, decoded in a thread."""

import json

import pytest

from gateway.domain.errors import BadRequest
from gateway.domain.request import Surface
from gateway.web.bodies.body_decoding import LONG_BYTES, decode_in_thread_if_long
from gateway.web.openai import inference_requests


async def test_the_refusal_of_a_long_body_has_its_reason():
    body = json.dumps({"prompt": list(range(100_000))}).encode()
    assert len(body) > LONG_BYTES
    with pytest.raises(BadRequest, match="must name a model"):
        await decode_in_thread_if_long(
            body, lambda body: inference_requests.decode_openai_request(Surface.COMPLETIONS, body)
        )
