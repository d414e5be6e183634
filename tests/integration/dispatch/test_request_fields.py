"""Which fields of a request reach an engine: those of its kind, and those to which the operator consents."""

import json

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

HARMFUL = {
    "nvext": {"annotations": ["x"]},
    "return_hidden_states": True,
    "return_routed_experts": True,
    "mm_processor_kwargs": {"num_crops": 10**6},
    "extra_headers": {"authorization": "mine"},
    "api_key": "mine",
    "trust_remote_code": True,
    "extra_body": {"lora_path": "/etc"},
    "guardrails": ["off"],
    "a_field_of_tomorrow": 1,
}
USUAL = {"temperature": 0.5, "top_k": 7, "min_p": 0.1, "seed": 1, "regex": "a*", "tools": [], "user": "ada"}
BODIES = {
    "chat/completions": {"messages": [{"role": "user", "content": "hi"}], **USUAL},
    "completions": {"prompt": "hi", "top_p": 0.5, "echo": False},
}


async def body_at(worker, running, path, **more):
    body = {"model": "m", "max_tokens": 4, **BODIES[path], **more}
    async with running.http.post(f"{running.url}/v1/{path}", json=body, headers=running.headers()) as answer:
        assert answer.status == 200, await answer.text()
    return worker.seen[-1].body


@pytest.mark.parametrize("kind", ["sglang", "vllm", "openai"])
@pytest.mark.parametrize("path", BODIES)
async def test_unknown_fields_of_a_tenant_stay_with_the_gateway(gateway, path, kind):
    async with ScriptedWorker() as worker, gateway(worker, kind=kind) as running:
        got = await body_at(worker, running, path, **HARMFUL)
    assert not HARMFUL.keys() & got.keys()
    assert {name: got[name] for name in BODIES[path]} == BODIES[path]


async def test_a_field_passes_by_consent_of_the_operator_alone(gateway):
    consent = {"requests.pass_fields": json.dumps(["mm_processor_kwargs", "lora_path"])}
    async with ScriptedWorker() as worker, gateway(worker, **consent) as running:
        got = await body_at(worker, running, "chat/completions", lora_path="/x", **HARMFUL)
    assert got["mm_processor_kwargs"] == HARMFUL["mm_processor_kwargs"]
    assert not (HARMFUL.keys() - {"mm_processor_kwargs"}) & got.keys()
    assert "lora_path" not in got
