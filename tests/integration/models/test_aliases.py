"""Aliases of models: exact names and patterns, for all tenants or for one."""

import json

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

MODELS = [
    {"name": "m", "aliases": ["claude-*", "gpt-4o"]},
    {
        "name": "small",
        "aliases": ["claude-haiku-*", "gpt-4o-mini*"],
        "tenant_aliases": {"globex": ["gpt-4o*", "m"]},
    },
]
"""Patterns come in the order of the settings: `claude-haiku-4` is `m`."""


@pytest.mark.parametrize(
    ("tenant", "asked", "answers"),
    [
        ("acme", "claude-sonnet-4-5-20250929", "m"),
        ("acme", "claude-haiku-4", "m"),
        ("acme", "gpt-4o", "m"),
        ("acme", "gpt-4o-mini-2024-07-18", "small"),
        ("acme", "small", "small"),
        ("acme", "m", "m"),
        ("globex", "gpt-4o", "small"),
        ("globex", "m", "small"),
        ("globex", "claude-opus-4", "m"),
    ],
)
async def test_an_alias_stands_for_its_model(gateway, tenant, asked, answers):
    async with (
        ScriptedWorker(models=["m", "small"]) as worker,
        gateway(worker, models=json.dumps(MODELS)) as running,
    ):
        async with running.chat(model=asked, tenant=tenant) as response:
            assert response.status == 200, await response.text()
        assert worker.seen[-1].body["model"] == answers


async def test_a_name_that_no_pattern_matches_does_not_exist_and_patterns_are_not_listed(gateway):
    async with (
        ScriptedWorker(models=["m", "small"]) as worker,
        gateway(worker, models=json.dumps(MODELS)) as running,
    ):
        async with running.chat(model="gpt-5") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "model_not_found")
        async with running.http.get(f"{running.url}/v1/models", headers=running.headers()) as response:
            assert [card["id"] for card in (await response.json())["data"]] == ["gpt-4o", "m", "small"]
        for name, status in (("claude-sonnet-4-5", 200), ("m", 200), ("gpt-5", 404)):
            async with running.http.get(
                f"{running.url}/v1/models/{name}", headers=running.headers()
            ) as response:
                assert response.status == status


async def test_access_is_checked_by_the_models_own_name(gateway):
    tenants = {"acme": {"models": {"deny": ["m"]}}}
    async with (
        ScriptedWorker(models=["m", "small"]) as worker,
        gateway(worker, models=json.dumps(MODELS), tenants=tenants) as running,
    ):
        async with running.chat(model="claude-sonnet-4-5") as response:
            assert response.status == 403
        async with running.http.get(
            f"{running.url}/v1/models/claude-sonnet-4-5", headers=running.headers()
        ) as response:
            assert response.status == 404
