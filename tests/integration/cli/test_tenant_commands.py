"""`radixgate organisations`, `plans`, `tenants`, `keys` and `database`, against a database of each kind."""

import json
import re
import sys
from functools import partial

import pytest

from gateway.cli.main import main
from gateway.database.tables import REVISION
from gateway.process.secrets import FILE_NAME


def without_deployment(errors):
    """Return what a command printed on standard error, without the line that names the deployment."""
    return re.sub(r"^deployment: .*\n", "", errors, flags=re.M)


@pytest.fixture
def run_command(tmp_path, monkeypatch, capsys):
    """Runs a command in this process: exit code, standard output, standard error without the deployment."""
    monkeypatch.setenv("RADIXGATE__STATE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("RADIXGATE__DATABASE__UPGRADE", "always")

    def run(*arguments, url):
        monkeypatch.setenv("RADIXGATE__DATABASE__URL", url)
        monkeypatch.setattr(sys, "argv", ["radixgate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out, without_deployment(said.err)

    return run


@pytest.fixture
def radixgate(run_command, tables_url):
    """Runs a command on a database that has tables."""
    return partial(run_command, url=tables_url)


def test_a_key_lives_from_its_making_to_its_end(radixgate, tmp_path):
    assert radixgate("plans", "set", "free", "--limit", "requests=60/minute", "--deny", "x-*")[::2] == (0, "")
    assert radixgate("tenants", "set", "acme", "--plan", "free", "--organisation", "org")[::2] == (0, "")
    assert radixgate("tenants", "list")[1].splitlines()[1].split() == [
        "acme",
        "org",
        "free",
        "-",
        "*",
        "enabled",
    ]
    code, key, said = radixgate("keys", "create", "acme", "--quiet", "--name", "robot")
    assert (code, said) == (0, "")
    first = key.split("-")[1]
    code, key, _ = radixgate("keys", "rotate", first, "--grace", "1h", "--quiet")
    second = key.split("-")[1]
    listed = [json.loads(line) for line in radixgate("keys", "list", "--json")[1].splitlines()]
    assert {each["key"]["id"]: each["key"]["name"] for each in listed} == {first: "robot", second: "robot"}
    assert {each["key"]["hash"] for each in listed} == {"hmac-sha256"}
    code, said, _ = radixgate("keys", "revoke", "--tenant", "acme", "--dry-run")
    assert said.splitlines() == [*sorted((first, second)), "Would revoke 2 keys."]
    assert len(radixgate("keys", "list")[1].splitlines()) == 3
    nobody = (1, "", "radixgate: there is no key 'nope'\n")
    assert radixgate("keys", "revoke", first, "nope", "--dry-run") == nobody
    assert radixgate("keys", "revoke", first, "nope") == nobody
    assert radixgate("keys", "revoke", first, second)[1].endswith("Revoked 2 keys.\n")
    assert len(radixgate("keys", "list")[1].splitlines()) == 1
    assert (tmp_path / FILE_NAME).exists()


def test_a_tenant_that_the_settings_file_has_too_is_reported_since_the_file_wins(radixgate, tmp_path):
    file = tmp_path / "gateway.yaml"
    entry = f"{{id: abc12345, hash: 'hmac-sha256:{'0' * 64}'}}"
    file.write_text(f"plans: [{{name: free}}]\ntenants: [{{id: acme, plan: free, keys: [{entry}]}}]\n")
    code, said, note = radixgate("tenants", "set", "acme", "--plan", "free", "-c", str(file))
    assert (code, "tenant acme created" in said) == (0, True)
    assert "the settings file has the tenant acme too, and wins" in note
    assert "the settings file has the plan free too" in radixgate("plans", "set", "free", "-c", str(file))[2]
    assert (
        "the settings file has tenants of its own: acme" in radixgate("tenants", "list", "-c", str(file))[2]
    )
    assert "the settings file has keys of its own: abc12345" in radixgate("keys", "list", "-c", str(file))[2]
    for change in (["revoke", "abc12345"], ["rotate", "abc12345"], ["expire", "abc12345", "2027-01-31"]):
        code, said, refusal = radixgate("keys", *change, "-c", str(file))
        assert (code, said, "the settings file has the keys abc12345" in refusal) == (1, "", True)
    code, said, refusal = radixgate("keys", "revoke", "--tenant", "acme", "-c", str(file))
    assert (code, said, "the tenant acme is in the settings file" in refusal) == (1, "", True)
    code, key, refusal = radixgate("keys", "create", "acme", "-c", str(file))
    assert (code, key) == (1, "")
    assert "the tenant acme is in the settings file, and so are its keys" in refusal
    assert radixgate("tenants", "set", "globex", "-c", str(file))[2] == ""
    assert radixgate("keys", "create", "globex", "-c", str(file))[0] == 0


def test_a_plan_has_its_share_of_the_queue(radixgate):
    assert radixgate("plans", "set", "gold", "--weight", "2.5")[::2] == (0, "")
    assert radixgate("plans", "list")[1].splitlines()[1].split() == ["gold", "-", "-", "2.5", "-", "*"]
    assert radixgate("plans", "set", "gold", "--concurrency", "3")[::2] == (0, "")
    assert json.loads(radixgate("plans", "list", "--json")[1])["weight"] == 2.5
    assert radixgate("plans", "set", "gold", "--clear", "weight")[::2] == (0, "")
    assert json.loads(radixgate("plans", "list", "--json")[1])["weight"] == 1.0
    code, _, said = radixgate("plans", "set", "gold", "--weight", "0")
    assert (code, said) == (2, "radixgate: $.weight: expected a number, at least 1e-06\n")


def test_plans_and_keys_have_service_classes(radixgate):
    assert radixgate("plans", "set", "gold", "--class", "code", "--class", "batch")[::2] == (0, "")
    assert radixgate("plans", "list")[1].splitlines()[1].split() == [
        "gold",
        "-",
        "-",
        "1",
        "code",
        "batch",
        "*",
    ]
    assert radixgate("plans", "set", "gold", "--weight", "2")[::2] == (0, "")
    assert json.loads(radixgate("plans", "list", "--json")[1])["classes"] == ["code", "batch"]
    assert radixgate("tenants", "set", "acme", "--plan", "gold")[::2] == (0, "")
    key = radixgate("keys", "create", "acme", "--class", "batch", "--quiet")[1]
    radixgate("keys", "rotate", key.split("-")[1])
    listed = [json.loads(line) for line in radixgate("keys", "list", "--json")[1].splitlines()]
    assert [each["key"]["class"] for each in listed] == ["batch", "batch"]
    assert radixgate("plans", "set", "gold", "--clear", "classes")[::2] == (0, "")
    assert json.loads(radixgate("plans", "list", "--json")[1])["classes"] == []
    code, _, said = radixgate("plans", "set", "gold", "--class", "nope")
    assert (code, said.splitlines()[0].startswith("radixgate: $.classes[0]")) == (2, True)


def test_a_tenant_of_the_database_may_be_on_a_plan_of_the_settings_file(radixgate, tmp_path):
    file = tmp_path / "radixgate.yaml"
    file.write_text("plans: [{name: gold, concurrency: 3}]\n")
    assert radixgate("tenants", "set", "acme", "--plan", "gold", "--config", str(file))[::2] == (0, "")
    assert json.loads(radixgate("tenants", "list", "--json")[1])["plan"] == "gold"
    # It is the file's, and no plan of the database.
    assert len(radixgate("plans", "list")[1].splitlines()) == 1
    neither = "radixgate: there is no plan 'gold', neither in the database nor in the settings file\n"
    assert radixgate("tenants", "set", "other", "--plan", "gold") == (1, "", neither)
    assert radixgate("plans", "set", "gold", "--weight", "2")[::2] == (0, "")
    assert radixgate("tenants", "set", "other", "--plan", "gold")[::2] == (0, "")


def test_limits_of_every_kind_are_set_shown_and_cleared(radixgate):
    limits = (
        "requests=60/minute",
        "spend=20.5/month,reset=calendar,alert_at=0.8",
        "concurrency=2,models=llama-* qwen*",
        "total_tokens=9/day,mode=shadow,until=2027-01-31",
    )
    given = [word for limit in limits for word in ("--limit", limit)]
    more = (
        "--context-length",
        "llama-*=8192",
        "--cache-blocks-max",
        "1000",
        "--without-redis",
        "closed",
        "--overflow",
        "allow",
    )
    for command in (("plans", "set", "free"), ("tenants", "set", "acme")):
        assert radixgate(*command, *given, *more)[::2] == (0, "")
        listed = radixgate(command[0], "list")[1].splitlines()[1]
        assert (
            "60 requests/minute, 20.5 spend/calendar month, 2 concurrency (llama-* qwen*), "
            "9 tokens/day (shadow) until 2027-01-31"
        ) in listed
        stored = json.loads(radixgate(command[0], "list", "--json")[1])
        assert stored["context_lengths"] == [{"models": ["llama-*"], "max": 8192}]
        assert (stored["cache_blocks_max"], stored["without_redis"]) == (1000, "closed")
        assert stored["overflow"] == "allow"
        cleared = ("--clear", "limits", "--clear", "context-lengths", "--clear", "cache_blocks_max")
        assert radixgate(*command, *cleared, "--limit", "requests=5/day")[::2] == (0, "")
        stored = json.loads(radixgate(command[0], "list", "--json")[1])
        assert [limit["requests"] for limit in stored["limits"]] == [5]
        assert (stored["context_lengths"], stored["cache_blocks_max"]) == ([], None)
        assert radixgate(*command, "--clear", "limits")[0] == 0
        assert json.loads(radixgate(command[0], "list", "--json")[1])["limits"] == []


def test_what_cannot_be_is_refused_in_one_line(radixgate):
    for arguments, code, said in (
        (("keys", "create", "nobody"), 1, "there is no tenant 'nobody'"),
        (("tenants", "set", "a", "--plan", "none"), 1, "there is no plan 'none'"),
        (("tenants", "set", "a b"), 2, "$.id: expected 1 to 64 letters, digits,"),
        (
            ("plans", "set", "p", "--limit", "requests=60"),
            2,
            "--limit requests=60: expected UNIT=AMOUNT/PERIOD",
        ),
        (
            ("plans", "set", "p", "--limit", "spend=1/eon"),
            2,
            "--limit spend=1/eon: expected UNIT=AMOUNT/PERIOD",
        ),
        (
            ("plans", "set", "p", "--limit", "requests=1/day,colour=red"),
            2,
            "--limit requests=1/day,colour=red: ",
        ),
        (("plans", "set", "p", "--clear", "name"), 2, "--clear name: expected one of limits, concurrency, "),
        (("plans", "set", "p", "--context-length", "m"), 2, "--context-length m: expected PATTERN=LENGTH"),
        (
            ("plans", "set", "p", "--without-redis", "x"),
            2,
            "$.without_redis: there is no 'x'; choose one of open",
        ),
        (("keys", "rotate", "x", "--grace", "soon"), 2, "--grace soon: expected a duration"),
        (("keys", "revoke"), 2, "give ids of keys, or --tenant for all keys of a tenant"),
    ):
        found = radixgate(*arguments)
        assert (found[0], found[1]) == (code, "")
        assert found[2].startswith(f"radixgate: {said}")
        assert found[2].count("\n") == 1


def test_without_a_database_the_file_is_where_tenants_come_from(radixgate):
    code, _, said = radixgate("keys", "list", url="none")
    assert (code, said) == (
        2,
        "radixgate: tenants and keys come from the settings file only (database.url: none)\n",
    )


def test_a_check_reports_whether_tables_are_up_to_date(run_command, database_url):
    assert run_command("database", "check", url=database_url)[:2] == (
        1,
        f"The tables have version none; this radixgate needs {REVISION}.\n",
    )
    assert run_command("database", "upgrade", url=database_url)[0] == 0
    assert run_command("database", "check", url=database_url)[0] == 0


def test_the_first_change_makes_the_tables(run_command, database_url):
    assert run_command("tenants", "set", "acme", url=database_url)[0] == 0
    assert run_command("database", "check", url=database_url)[0] == 0


def test_tenants_and_keys_of_a_backup_are_there_again_after_a_restore(radixgate, tmp_path):
    file, restored = tmp_path / "radixgate.backup", f"sqlite:///{tmp_path}/restored.db"
    assert radixgate("tenants", "set", "acme")[0] == 0
    code, key, _ = radixgate("keys", "create", "acme", "--quiet")
    code, printed, said = radixgate("database", "backup", str(file))
    assert (code, printed) == (0, "")
    assert said.startswith("Backed up ")
    assert "tenants 1" in said
    assert oct(file.stat().st_mode)[-3:] == "600"
    code, _, said = radixgate("database", "restore", str(file), url=restored)
    assert (code, said.startswith("Restored ")) == (0, True)
    listed = json.loads(radixgate("keys", "list", "--json", url=restored)[1])
    assert listed["key"]["id"] == key.split("-")[1]
    code, _, said = radixgate("database", "restore", str(file), url=restored)
    assert (code, said.startswith("radixgate: the backup: the database is not empty")) == (1, True)
    assert sorted(path.name for path in tmp_path.glob("radixgate.backup*")) == [file.name]


def test_mistakes_with_backups_are_reported_in_one_line(radixgate, tmp_path):
    (tmp_path / "nonsense").write_text("nonsense")
    for arguments, code, said in (
        (("restore", str(tmp_path / "none")), 2, "cannot be read: No such file"),
        (("restore", str(tmp_path / "nonsense")), 1, "the backup: it is damaged"),
        (("backup", str(tmp_path / "no/where")), 2, "there is no directory"),
        (("downgrade", "--to", "0001"), 2, "there is no terminal to ask for confirmation; give --yes"),
        (("downgrade", "--to", "9999", "--yes"), 1, "which is not later than 9999"),
    ):
        found = radixgate("database", *arguments)
        assert (found[0], found[1]) == (code, "")
        assert said in found[2]
        assert found[2].count("\n") == 1


def test_tables_are_downgraded_and_upgraded_again(radixgate):
    assert radixgate("database", "upgrade")[0] == 0
    code, said, _ = radixgate("database", "downgrade", "--to", "0011", "--yes")
    assert (code, said) == (0, f"The tables have version 0011; they had {REVISION}.\n")
    assert radixgate("database", "check")[:2] == (
        1,
        f"The tables have version 0011; this radixgate needs {REVISION}.\n",
    )
    assert radixgate("database", "upgrade")[1] == f"The tables have version {REVISION}.\n"


def test_an_upgrade_may_go_on_without_a_database_that_is_away(radixgate):
    away = "postgresql://nobody@127.0.0.1:1/none"
    assert radixgate("database", "upgrade", url=away)[0] == 1
    code, said, _ = radixgate("database", "upgrade", "--if-reachable", url=away)
    assert (code, said.startswith("The database does not answer, and is not upgraded: ")) == (0, True)
