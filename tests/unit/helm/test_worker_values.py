"""The chart's values for workers that run already, against the gateway's settings, which get them as they are."""

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from gateway.settings.prices import PriceSettings
from gateway.settings.workers import (
    KvEventsSettings,
    LoadFeedSettings,
    ProviderModelSettings,
    ProviderSettings,
    WorkerSettings,
    WorkerTlsSettings,
)

CHART = Path(__file__).parents[3] / "helm/radixgate"
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
EXTERNAL = SCHEMA["properties"]["workers"]["properties"]["external"]["items"]["properties"]
LEAST = {"id": "gpu-0", "kind": "sglang", "url": "http://10.0.0.1:30000"}


def fields(kind):
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def test_every_setting_of_a_worker_may_be_given():
    # A key comes from a Secret, and has the chart's own way of saying so.
    assert set(EXTERNAL) == fields(WorkerSettings) - {"api_key"} | {"apiKey"}
    assert set(EXTERNAL["tls"]["properties"]) == fields(WorkerTlsSettings)
    assert set(EXTERNAL["kv_events"]["oneOf"][1]["properties"]) == fields(KvEventsSettings)
    assert set(EXTERNAL["load_feed"]["oneOf"][1]["properties"]) == fields(LoadFeedSettings)
    provider = EXTERNAL["provider"]["properties"]
    model = provider["models"]["additionalProperties"]["properties"]
    assert set(provider) == fields(ProviderSettings)
    assert set(model) == fields(ProviderModelSettings)
    assert set(model["prices"]["properties"]) == fields(PriceSettings)


@pytest.mark.parametrize(
    "more",
    [
        {
            "priority": "on",
            "dp_rank": "off",
            "prefill_tokens_per_second": 9000,
            "slots": 256,
            "role": "prefill",
            "models": ["m"],
        },
        {"kv_events": {"endpoint": "tcp://*:5557", "ranks": 2}, "headers": {"x-team": "llm"}},
        {"load_feed": {"endpoint": "tcp://*:5559", "ranks": 2}},
        {"kv_events": "off", "url": "https://10.0.0.1", "tls": {"ca": "/etc/ca.crt"}},
        {"provider": {"models": {"m": {"name": "n", "prices": {"input": 1, "output": 2}}}, "after_ms": 50}},
        {
            "provider": {
                "models": {"m": {}},
                "rest_seconds_max": 5,
                "concurrency": 4,
                "limits": [{"requests": 500, "per": "minute"}],
            }
        },
    ],
    ids=["scheduling", "events", "load-feed", "tls", "provider", "limited provider"],
)
def test_what_the_schema_takes_the_gateway_takes(more):
    worker = {**LEAST, **more}
    jsonschema.validate({"workers": {"external": [worker]}}, SCHEMA)
    assert (
        msgspec.convert(worker, WorkerSettings, strict=False, dec_hook=lambda kind, text: kind(text)).id
        == "gpu-0"
    )


@pytest.mark.parametrize(
    "more",
    [
        {"priority": "high"},
        {"role": "both ways"},
        {"kv_events": {"ranks": 2}},
        {"kvEvents": "auto"},
        {"provider": {}},
        {"provider": {"models": {"m": {}}, "concurrency": 0}},
        {"prefill_tokens_per_second": 0},
    ],
    ids=str,
)
def test_what_the_gateway_refuses_the_schema_refuses(more):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"workers": {"external": [{**LEAST, **more}]}}, SCHEMA)
