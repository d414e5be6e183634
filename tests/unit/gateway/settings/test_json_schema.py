"""The JSON schema of the settings accepts what the settings accept."""

import jsonschema
import pytest
import yaml

from gateway.settings.json_schema import settings_schema


@pytest.fixture(scope="module")
def validator():
    schema = settings_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(
    "text",
    [
        "workers: ['http://a:8000']",
        "workers: [{url: 'http://a:8000'}]",
        "workers: [{id: a, kind: vllm, url: 'http://a:8000', api_key: '${env:KEY}'}]",
        "listen: {port: 9000}\nrouting: {policy: cost, options: {delay_weight: 0.1}}",
    ],
)
def test_settings_that_load_are_valid(validator, text):
    assert list(validator.iter_errors(yaml.safe_load(text))) == []


@pytest.mark.parametrize(
    "text",
    [
        "workers: [{id: a}]",
        "workers: ['ftp://a']",
        "listen: {prt: 9000}",
        "telemetry: {log_level: loud}",
        "worker: []",
    ],
)
def test_mistakes_are_found(validator, text):
    assert list(validator.iter_errors(yaml.safe_load(text)))
