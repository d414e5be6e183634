"""Refusals of engines because of the context, in the engines' own words."""

import json

import pytest

from gateway.relay.context_refusal import context_refusal
from gateway.relay.worker_errors import error_in_frame, read_error
from gateway.web.error_response import anthropic_error_body

VLLM = [
    (
        "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens. "
        "Please reduce the length of the input messages.",
        (5000, None, 4096),
    ),
    (
        "This model's maximum context length is 1024 tokens. However, you requested 20 output tokens and "
        "your prompt contains at least 1005 input tokens, for a total of at least 1025 tokens. Please reduce "
        "the length of the input prompt or the number of requested output tokens. "
        "(parameter=input_tokens, value=1005)",
        (1005, 20, 1024),
    ),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is "
        "4096 tokens and your request has 1000 input tokens (32000 > 4096 - 1000).",
        (1000, 32000, 4096),
    ),
    (
        "You passed 98305 input tokens and requested 32768 output tokens. However, the model's context "
        "length is only 131072 tokens, resulting in a maximum input length of 98304 tokens. Please reduce "
        "the length of the input prompt. (parameter=input_tokens, value=98305)",
        (98305, 32768, 131072),
    ),
    (
        "This model's maximum context length is 4096 tokens. However, you requested 5100 tokens (5000 in the "
        "messages, 100 in the completion). Please reduce the length of the messages or completion.",
        (5000, 100, 4096),
    ),
    (
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens.",
        (5000, None, 4096),
    ),
    ("max_tokens must be at least 1, got -904.", (None, None, None)),
    (
        "This model's maximum context length is 32768 tokens. However, you requested 512 output tokens and your "
        "prompt contains 5290998 characters (more than 4128768 characters, which is the upper bound for 32256 "
        "input tokens). Please reduce the length of the input prompt or the number of requested output tokens. "
        "(parameter=input_text, value=5290998)",
        (None, 512, 32768),
    ),
    (
        "You passed 74655 input characters and requested 32000 output tokens. However, the model's context "
        "length is only 32000 tokens, resulting in a maximum input length of 0 tokens (at most 0 characters). "
        "Please reduce the length of the input prompt. (parameter=input_text, value=74655)",
        (None, 32000, 32000),
    ),
    (
        "max_tokens=5000cannot be greater than max_model_len=max_total_tokens=4096. Please request fewer output "
        "tokens. (parameter=max_tokens, value=5000)",
        (None, 5000, 4096),
    ),
]
SGLANG = [
    (
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        (5000, None, 4096),
    ),
    (
        "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a "
        "total of 5100 tokens: 4000 tokens from the input messages and 1100 tokens for the completion. "
        "Please reduce the number of tokens in the input messages or the completion to fit within the limit.",
        (4000, 1100, 4096),
    ),
    (
        "Input length (40000 tokens) exceeds the maximum allowed length (32762 tokens). Use a shorter input "
        "or enable --allow-auto-truncate.",
        (40000, None, 32762),
    ),
]
LLAMA_CPP = [
    (
        "request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it",
        (9412, None, 8192),
    ),
    (
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        (None, None, None),
    ),
    ("Requested tokens (5000) exceed context window of 2048", (5000, None, 2048)),
    (
        "This model's maximum context length is 2048 tokens. However, you requested 2100 tokens (2000 in "
        "your prompt; 100 for the completion). Please reduce your prompt; or completion length.",
        (2000, 100, 2048),
    ),
]
TGI = [
    (
        "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000",
        (5000, None, 4095),
    ),
    (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` "
        "tokens and 4091 `max_new_tokens`",
        (4000, 4091, 4096),
    ),
]
TENSORRT_LLM = [
    (
        "The sum of prompt length (72417.0), query length (0) should not exceed max_num_tokens (69632)",
        (72417, None, 69632),
    ),
    (
        "The sum of prompt length (72417), query length (0) and max_tokens (100) should not exceed "
        "max_num_tokens (69632)",
        (72417, None, 69632),
    ),
    (
        "`default_max_tokens` (-905) should be greater than 0, `default_max_tokens` (-905) = max_seq_len "
        "(4096) - `splited_prompt_len` (5000) - `query_token_len` (1)",
        (5000, None, 4096),
    ),
    (
        "Prompt length (5000) exceeds maximum input length (4096). Set log level to info and check "
        "TRTGPTModel logs for how maximum input length is set",
        (5000, None, 4096),
    ),
]
OLLAMA = [
    ("the input length exceeds the context length", (None, None, None)),
    ("prompt too long; exceeded max context length by 904 tokens", (None, None, None)),
]
TEXTS = [*VLLM, *SGLANG, *LLAMA_CPP, *TGI, *TENSORRT_LLM, *OLLAMA]

BODIES = [
    {
        "error": {
            "message": VLLM[0][0],
            "type": "BadRequestError",
            "param": "input_tokens",
            "code": 400,
        }
    },
    {
        "object": "error",
        "message": SGLANG[0][0],
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
    {
        "error": {
            "code": 400,
            "message": LLAMA_CPP[0][0],
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 9412,
            "n_ctx": 8192,
        }
    },
    {"error": TGI[0][0], "error_type": "validation"},
    {"detail": SGLANG[1][0]},
    {"error": {"message": "too much", "type": "invalid_request_error", "code": "context_length_exceeded"}},
    {"error": {"message": "", "type": "exceed_context_size_error", "code": 400}},
]


@pytest.mark.parametrize(("text", "numbers"), TEXTS, ids=[text[:40] for text, _ in TEXTS])
def test_the_text_of_an_engine_is_recognised_with_its_numbers(text, numbers):
    found = context_refusal(text)
    assert found is not None
    assert (found.prompt_tokens, found.output_tokens, found.context_length) == numbers
    assert (found.status, found.fields()["code"]) == (400, "context_length_exceeded")
    assert found.fields()["message"] == text


@pytest.mark.parametrize("body", BODIES)
def test_the_body_of_an_engine_is_recognised(body):
    assert read_error(json.dumps(body).encode()).context_refusal is not None


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens must be at least 1, got 0.",
        "temperature must be in [0, 2], got 3.",
        "The model `x` does not exist.",
        "",
    ],
)
def test_other_refusals_are_left_as_they_are(text):
    assert context_refusal(text, ("BadRequestError", 400)) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SGLANG[0][0], "prompt is too long: 5000 tokens > 4096 maximum"),
        (
            SGLANG[1][0],
            "input length and `max_tokens` exceed context limit: 4000 + 1100 > 4096, "
            "decrease input length or `max_tokens` and try again",
        ),
        (OLLAMA[0][0], "prompt is too long: the input length exceeds the context length"),
    ],
)
def test_clients_of_anthropics_api_get_its_words(text, words):
    error = context_refusal(text)
    assert error is not None
    body = json.loads(anthropic_error_body(error, "req-1"))
    assert body["error"] == {"type": "invalid_request_error", "message": words}


def test_an_engine_that_finds_it_out_in_the_stream_gets_the_same_code():
    frame = {"error": {"message": SGLANG[2][0], "type": "BAD_REQUEST"}}
    found = error_in_frame(b"data: " + json.dumps(frame).encode() + b"\n\n")
    assert found is not None
    assert found.refusal == 400
    assert found.fields.context_refusal is not None
    told = json.loads(found.fields.context_refusal.body())
    assert told["error"]["code"] == "context_length_exceeded"
