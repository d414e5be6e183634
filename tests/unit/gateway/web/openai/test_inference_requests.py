"""OpenAI bodies: read, dropped and refused fields."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import BadRequest
from gateway.domain.request import Surface
from gateway.web.openai.body_fields import CHOICES_MAX
from gateway.web.openai.inference_requests import GATEWAY_OWNED, decode_openai_request

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields):
    return decode_openai_request(
        Surface.CHAT, json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode()
    )


def completion(**fields):
    return decode_openai_request(
        Surface.COMPLETIONS, json.dumps({"model": "m", "prompt": "hi", **fields}).encode()
    )


def refused(surface, body):
    with pytest.raises(BadRequest) as refusal:
        decode_openai_request(surface, body if isinstance(body, bytes) else json.dumps(body).encode())
    fields = json.loads(refusal.value.body())["error"]
    assert set(fields) == {"message", "type", "param", "code"}
    assert fields["type"] == "invalid_request_error"
    return fields["param"]


def outcome(surface, body):
    """None if the body was read, else the code of the refusal. Anything else is raised."""
    try:
        decode_openai_request(surface, body)
    except BadRequest as refusal:
        return json.loads(refusal.body())["error"]["code"]
    return None


def test_a_small_request_is_read():
    request = chat()
    assert (request.model, request.prompt, request.stream, request.choices) == ("m", MESSAGES, False, 1)
    assert (request.include_usage, request.output_tokens_max) == (False, None)


def test_unknown_fields_stay_the_bytes_that_they_were():
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"min_p": 0.10,"x":{"b":1, "a":[1e3]}}'
    fields = decode_openai_request(Surface.CHAT, body).fields
    assert (bytes(fields["min_p"]), bytes(fields["x"])) == (b"0.10", b'{"b":1, "a":[1e3]}')


def test_fields_that_belong_to_the_gateway_are_dropped():
    request = chat(**dict.fromkeys(GATEWAY_OWNED, "mine"), temperature=0)
    assert set(request.fields) == {"model", "messages", "temperature"}


@pytest.mark.parametrize(
    "name",
    [
        *("cache_salt", "extra_key", "lora_path", "priority", "rid", "request_id"),
        *("bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "decode_tp_size"),
        *("data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank"),
        *("kv_transfer_params", "ec_transfer_params", "vllm_xargs", "session_id", "session_params"),
        *("custom_logit_processor", "logits_processors", "chat_template"),
    ],
)
def test_a_client_reaches_neither_other_tenants_nor_code(name):
    assert name not in chat(**{name: "mine"}).fields
    assert name not in completion(**{name: "mine"}).fields


@pytest.mark.parametrize(
    "name", ["chat_template_kwargs", "mm_processor_kwargs", "return_hidden_states", "top_k", "regex"]
)
def test_what_concerns_the_request_alone_is_passed_on(name):
    assert name in chat(**{name: {}}).fields


def test_the_larger_of_both_output_bounds_counts():
    assert chat(max_tokens=1, max_completion_tokens=500).output_tokens_max == 500
    assert chat(max_tokens=None, max_completion_tokens=7).output_tokens_max == 7


@pytest.mark.parametrize("field", ["n", "best_of"])
def test_too_many_choices_are_refused_by_the_name_of_their_field(field):
    with pytest.raises(BadRequest, match="at most 128") as refused:
        completion(**{field: CHOICES_MAX + 1})
    assert refused.value.param == field


def test_choices_are_counted():
    assert chat(n=3).choices == 3
    assert completion(n=2, best_of=5).choices == 5


def test_usage_is_requested_or_not():
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options={}).include_usage
    assert not chat(stream=True, stream_options=None).include_usage


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("text", ["text"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_completions_take_every_kind_of_prompt(prompt, expected):
    found = completion(prompt=prompt).prompt
    assert [one if isinstance(one, str) else list(one) for one in found] == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"model": "m" * 201}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [5]}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": [{"role": 5}]}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": "x"}, "stream_options"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 1.5}, "n"),
    ],
)
def test_a_wrong_field_is_named(fields, param):
    assert refused(Surface.CHAT, {"model": "m", "messages": MESSAGES, **fields}) == param


def test_a_model_with_too_long_a_name_is_refused_for_that():
    with pytest.raises(BadRequest, match="at most 200 characters"):
        completion(model="m" * 201, prompt="a")


@pytest.mark.parametrize(
    "prompt", [None, [], 5, {}, [-1], [2**32], [1.5], [True], [[1], "a", 5], ["a"] * 2049]
)
def test_a_wrong_prompt_is_named(prompt):
    assert refused(Surface.COMPLETIONS, {"model": "m", "prompt": prompt}) == "prompt"


def test_a_wrong_token_id_in_a_flat_prompt_is_named_as_it_was_sent():
    with pytest.raises(BadRequest, match=r"at `prompt\[1\]`") as refusal:
        completion(prompt=[1, -1])
    assert refusal.value.param == "prompt"
    with pytest.raises(BadRequest, match=r"at `prompt\[0\]\[1\]`"):
        completion(prompt=[[1, -1]])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"5",
        b"\xff\xfe",
        b"{'a': 1}",
        b'{"a":1}x',
        b"[" * 100_000,
        b'{"model":"\xff"}',
        b'{"model":"m","messages":[{"role":"user"}],"\xff":1}',
        b'{"model":"m","messages":[{"role":"user"}],"unknown":{"a":["\xed\xa0\x80"]}}',
    ],
)
def test_what_is_not_a_json_object_is_refused(body):
    assert refused(Surface.CHAT, body) is None or refused(Surface.CHAT, body) == "model"


def test_deep_nesting_is_refused_without_a_traceback():
    deep = b'{"model":"m","messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    refused(Surface.CHAT, deep)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body):
    assert outcome(Surface.CHAT, body) in (None, "invalid_request")


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = ["model", "messages", "prompt", "stream", "n", "max_tokens", "stream_options", "best_of", "tools"]


@given(st.dictionaries(st.sampled_from(NAMES), json_values), st.sampled_from(list(Surface)))
def test_any_json_is_read_or_refused(fields, surface):
    assert outcome(surface, json.dumps(fields).encode()) in (None, "invalid_request")


def test_an_answer_of_no_tokens_is_the_workers_to_give_or_to_refuse():
    assert chat(max_tokens=0).output_tokens_max == 0
    assert completion(max_tokens=0, best_of=0).choices == 1


@pytest.mark.parametrize(
    ("surface", "fields", "param"),
    [
        (
            Surface.EMBEDDINGS,
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1"}}],
                    }
                ]
            },
            "messages",
        ),
        (
            Surface.EMBEDDINGS,
            {"input": "a", "messages": [{"content": [{"image_url": "file:///etc/passwd"}]}]},
            "messages",
        ),
        (
            Surface.TOKENIZE,
            {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages",
        ),
        (Surface.SCORE, {"data_1": {"content": [{"video": ["/etc/passwd"]}]}}, "data_1"),
        (Surface.MODERATIONS, {"input": [{"type": "image_url", "image_url": {"url": "http://a"}}]}, "input"),
        (Surface.RERANK, {"documents": [{"content": [{"uuid": "another tenant's"}]}]}, "documents"),
        (Surface.SPEECH, {"input": "a", "ref_audio": "http://10.0.0.1/a.wav"}, "ref_audio"),
        (Surface.EMBEDDINGS, {"input": "a", "image_embeds": "AAAA"}, "image_embeds"),
    ],
)
def test_no_engine_is_sent_to_an_address_by_what_is_passed_on(surface, fields, param):
    assert refused(surface, {"model": "m", **fields}) == param
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
    assert (
        decode_openai_request(Surface.RERANK, json.dumps({"model": "m", "documents": picture}).encode()).model
        == "m"
    )
