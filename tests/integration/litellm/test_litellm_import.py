"""The import from LiteLLM: a key of LiteLLM is accepted with the same rights and no more."""

import json
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from gateway.cli.main import main
from gateway.settings.sources import load_settings
from gateway.tenants.directory import UnknownKey
from gateway.tenants.keys import pepper
from gateway.tenants.yaml_directory import register_from_settings

CONFIG = """
model_list:
  - model_name: gpt-4o-mini
    litellm_params:
      {model: hosted_vllm/llama-8b, api_base: "http://10.0.0.2:8000/v1", api_key: os.environ/VLLM_KEY, rpm: 60}
  - {model_name: llama-8b, litellm_params: {model: hosted_vllm/llama-8b, api_base: "http://10.0.0.3:8000"}}
  - {model_name: big, litellm_params: {model: openai/llama-70b, api_base: "http://10.0.0.4/v1/", api_key: sk-plain},
     model_info: {input_cost_per_token: 4.0e-7, output_cost_per_token: 0.000002}}
  - {model_name: claude, litellm_params: {model: anthropic/claude-3, api_key: os.environ/X}}
litellm_settings: {fallbacks: [{big: [gpt-4o-mini]}]}
general_settings: {master_key: sk-master, allowed_ips: [10.0.0.0/8]}
"""


def token(key):
    return sha256(key.encode()).hexdigest()


TABLES = {
    "LiteLLM_BudgetTable": [{"budget_id": "b1", "tpm_limit": 1000, "rpm_limit": None, "max_budget": 10.0}],
    "LiteLLM_OrganizationTable": [
        {
            "organization_id": "o1",
            "organization_alias": "Big Org",
            "budget_id": "b1",
            "models": ["gpt-4o-mini", "big"],
        }
    ],
    "LiteLLM_TeamTable": [
        {
            "team_id": "t1",
            "team_alias": "search team",
            "organization_id": "o1",
            "rpm_limit": 60,
            "max_parallel_requests": 4,
            "max_budget": 20.5,
            "soft_budget": 15.0,
            "budget_duration": "30d",
            "spend": 3.25,
            "models": ["gpt-4o-mini"],
            "blocked": False,
        },
        {"team_id": "t2", "team_alias": None, "models": [], "blocked": True},
    ],
    "LiteLLM_VerificationToken": [
        {
            "token": token("sk-team"),
            "key_alias": "robot",
            "team_id": "t1",
            "models": ["all-team-models"],
            "tpm_limit": 5,
        },
        {"token": token("sk-blocked-team"), "team_id": "t2", "models": []},
        {"token": token("sk-blocked"), "team_id": "t1", "blocked": True},
        {"token": token("sk-old"), "team_id": "t1", "expires": "2020-01-01T00:00:00"},
        {"token": token("sk-user"), "user_id": "ann@x.org", "models": ["big"], "max_budget": 5.0},
        {"token": token("sk-none"), "user_id": "ann@x.org", "models": ["no-default-models"]},
        {"token": token("sk-admin"), "user_id": "ann@x.org", "allowed_routes": ["management_routes"]},
        {"token": token("sk-ui"), "team_id": "litellm-dashboard", "user_id": "ann"},
        {"token": token("sk-lost"), "team_id": "gone"},
        {"token": token("sk-new"), "team_id": "t1"},
    ],
    "LiteLLM_DeprecatedVerificationToken": [
        {
            "token": token("sk-before"),
            "active_token_id": token("sk-new"),
            "revoke_at": "2099-01-01T00:00:00+00:00",
        },
        {
            "token": token("sk-long-before"),
            "active_token_id": token("sk-new"),
            "revoke_at": "2020-01-01T00:00:00Z",
        },
    ],
}


@pytest.fixture
def imported(tmp_path, monkeypatch, capsys):
    """`radixgate import litellm` of what is given: (exit code, settings, list of what was left)."""

    def run(*options, config=CONFIG, tables=TABLES):
        files = []
        for name, text in (("config.yaml", config), ("tables.json", tables and json.dumps(tables))):
            if text is not None:
                Path(tmp_path / name).write_text(text)
                files.insert(0, str(tmp_path / name))
        monkeypatch.setattr(sys, "argv", ["radixgate", "import", "litellm", *files, *options])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return run


@pytest.fixture
def directory(imported, tmp_path):
    """What the printed settings make of keys."""
    code, text, _ = imported()
    assert code == 0
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    environment = {"VLLM_KEY": "x", "WORKER_KEY_10_0_0_4": "y"}
    return register_from_settings(load_settings(file, environment).settings, pepper(b"secret"))


def test_a_key_goes_on_as_it_is(directory):
    found = directory.by_key("sk-team")
    assert (found.id, found.organisation) == ("search-team", "Big-Org")
    assert [
        (s.name.partition(":")[0], [(limit.name, limit.amount) for limit in s.limits]) for s in found.scopes
    ] == [
        ("organisation", [("total_tokens/minute", 1000)]),
        (
            "tenant",
            [
                ("requests/minute", 60),
                ("spend/calendar month", 20_500_000),
                ("spend (soft)/calendar month", 15_000_000),
                ("concurrency", 4),
            ],
        ),
        ("key", [("total_tokens/minute", 5)]),
    ]


@pytest.mark.parametrize(
    "key", ["sk-blocked", "sk-old", "sk-ui", "sk-lost", "sk-long-before", token("sk-team")]
)
def test_what_opened_nothing_there_opens_nothing_here(directory, key):
    with pytest.raises(UnknownKey):
        directory.by_key(key)


def test_a_blocked_team_is_a_disabled_tenant(directory):
    assert directory.by_key("sk-blocked-team").disabled


@pytest.mark.parametrize(
    ("key", "models"),
    [
        ("sk-team", ["llama-8b"]),
        ("sk-user", ["llama-70b"]),
        ("sk-none", []),
        ("sk-admin", ["llama-8b", "llama-70b"]),
    ],
)
def test_models_are_those_that_were_allowed_by_their_own_names(directory, key, models):
    tenant = directory.by_key(key)
    assert [name for name in ("llama-8b", "llama-70b") if tenant.allows(name)] == models


def test_a_key_for_management_needs_no_models(directory):
    assert directory.by_key("sk-admin").key_scopes == {"usage"}
    assert "inference" in directory.by_key("sk-user").key_scopes


def test_a_key_in_its_grace_period_has_the_rules_of_its_successor(directory):
    before, after = directory.by_key("sk-before"), directory.by_key("sk-new")
    assert (before.id, before.model_access) == (after.id, after.model_access)


def test_allowed_addresses_hold_for_every_key(directory):
    assert all(directory.by_key(key).networks for key in ("sk-team", "sk-user"))


def test_models_and_workers_become_settings(imported):
    found = yaml.safe_load(imported(tables=None)[1])
    assert found["models"] == [
        {"name": "llama-8b", "aliases": ["gpt-4o-mini"]},
        {"name": "llama-70b", "aliases": ["big"], "prices": {"input": 0.4, "output": 2.0}},
    ]
    assert [(w["kind"], w["url"], w.get("api_key")) for w in found["workers"]] == [
        ("vllm", "http://10.0.0.2:8000", "${env:VLLM_KEY}"),
        ("vllm", "http://10.0.0.3:8000", None),
        ("openai", "http://10.0.0.4", "${env:WORKER_KEY_10_0_0_4}"),
    ]


def test_what_has_no_place_here_is_listed_and_no_secret_is(imported):
    _, text, said = imported()
    for line in (
        "model_list[3] (claude): anthropic provider at no address",
        "model_list[0] (gpt-4o-mini): rpm",
        "general_settings: master_key",
        "litellm_settings: fallbacks",
        "organisation Big-Org: max_budget",
        "team search-team: spend of 3.25 in the current period",
        "its team gone does not exist",
    ):
        assert line in said
    assert not any(secret in text + said for secret in ("sk-plain", "sk-master"))


def test_into_the_database_it_is_one_change_and_may_be_repeated(imported, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RADIXGATE__STATE_DIRECTORY", str(tmp_path))
    for _ in range(2):
        code, text, _ = imported("--into-database")
        assert code == 0
        assert set(yaml.safe_load(text)) == {"models", "workers"}
    monkeypatch.setattr(sys, "argv", ["radixgate", "keys", "list", "--json"])
    with pytest.raises(SystemExit):
        main()
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["tenant"] for each in listed} == {"search-team", "t2", "ann-x.org"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "0 tenants and 0 keys, 0 things not imported"),
        ("litellm_settings: {drop_params: true}", "0 tenants and 0 keys, 1 thing not imported"),
    ],
)
def test_the_last_line_counts_what_was_imported_and_what_was_not(imported, more, said):
    _, _, errors = imported(config=f"model_list: []\n{more}", tables=None)
    assert errors.splitlines()[-1] == said


def test_one_tenant_and_one_key_are_counted_in_the_singular(imported):
    one = {"LiteLLM_TeamTable": [{"team_id": "t"}]}
    one["LiteLLM_VerificationToken"] = [{"token": token("sk-1"), "team_id": "t"}]
    _, _, errors = imported(config=None, tables=one)
    assert errors == "1 tenant and 1 key, 0 things not imported\n"


@pytest.mark.parametrize(
    ("config", "tables", "said"),
    [
        ("model_list: 5", None, "model_list: expected a list"),
        ("model_list: [{a: b}]", None, "model_list[0]: expected model_name"),
        ("[1, 2]", None, "expected a mapping with model_list"),
        (None, {"LiteLLM_TeamTable": 5}, "LiteLLM_TeamTable: expected a list of rows"),
        (None, {"LiteLLM_VerificationToken": [{"token": None}]}, "a row has no token"),
        (None, {"LiteLLM_VerificationToken": [{"token": "x", "expires": "soon"}]}, "'soon' is not a time"),
        (
            None,
            {"LiteLLM_TeamTable": [{"team_id": "t", "rpm_limit": "many"}]},
            "is not in the format of LiteLLM",
        ),
    ],
)
def test_what_is_not_litellms_is_refused_in_one_line(imported, config, tables, said):
    code, text, errors = imported(config=config, tables=tables)
    assert (code, text) == (1, "")
    assert said in errors
    assert errors.count("\n") == 1


def test_the_statement_names_every_table(imported):
    _, text, _ = imported("--sql", config=None, tables=None)
    assert all(f'FROM "{name}"' in text for name in TABLES)
