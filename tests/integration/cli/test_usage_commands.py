"""`radixgate usage`, `audit` and `operators`, against a database of each kind."""

import asyncio
import csv
import json
import re
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

from gateway.cli.main import main
from gateway.database.database import Database
from gateway.database.usage_store import UsageStore

DAY_MS = 24 * 3_600_000
ROW = {
    "attempt": 1,
    "organisation": "org",
    "key_id": "k",
    "asked": "m",
    "model": "m",
    "worker": "w0",
    "surface": "chat/completions",
    "prompt_tokens": 10,
    "cached_tokens": None,
    "output_tokens": 4,
    "cost": 1_500_000,
    "ttft_ms": 7,
    "duration_ms": 9,
    "status": 200,
    "code": "ok",
    "user": None,
    "tags": None,
}
ROWS = [
    {
        **ROW,
        "request_id": "r1",
        "at_ms": 0,
        "cached_tokens": 4,
        "tenant": "acme",
        "user": "=1+1",
        "tags": {"team": "réd"},
    },
    {**ROW, "request_id": "r2", "at_ms": DAY_MS, "tenant": "acme", "tags": {"team": "blue"}, "status": 429},
    {**ROW, "request_id": "r3", "at_ms": DAY_MS, "tenant": "globex", "model": "n", "ttft_ms": None},
]


@pytest.fixture
def radixgate(tmp_path, tables_url, monkeypatch, capfdbinary):
    """Runs a command in this process: exit code, standard output, standard error without the deployment."""
    monkeypatch.setenv("RADIXGATE__STATE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("RADIXGATE__DATABASE__UPGRADE", "always")
    monkeypatch.setenv("RADIXGATE__DATABASE__URL", tables_url)

    async def fill():
        database = Database(tables_url, Path())
        await UsageStore(database).write(ROWS, journal="j", position=0, end=1, now_ms=1)
        await database.close()

    asyncio.run(fill())

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["radixgate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfdbinary.readouterr()
        errors = re.sub(r"^deployment: .*\n", "", said.err.decode(), flags=re.M)
        return ended.value.code, said.out.decode(), errors

    return run


def test_usage_is_summed_by_the_given_columns(radixgate):
    code, said, _ = radixgate("usage")
    assert code == 0
    assert [line.split() for line in said.splitlines()] == [
        [
            "tenant",
            "model",
            "requests",
            "failed",
            "prompt",
            "cached",
            "output",
            "cost",
            "saved",
            "ttft",
            "ms",
        ],
        ["acme", "m", "2", "1", "20", "4", "8", "3.000000", "0.000000", "7.0"],
        ["globex", "n", "1", "0", "10", "0", "4", "1.500000", "0.000000", "-"],
    ]

    def groups(*arguments):
        return [json.loads(line) for line in radixgate("usage", "--json", *arguments)[1].splitlines()]

    days = groups("--by", "day", "--since", "1970-01-02")
    assert [(g["day"], g["requests"]) for g in days] == [("1970-01-02T00:00:00Z", 2)]
    assert [g["requests"] for g in groups("--by", "day", "--until", "1970-01-01")] == [1]
    teams = {g["tag:team"]: g["requests"] for g in groups("--by", "tag:team")}
    assert teams == {"réd": 1, "blue": 1, None: 1}
    assert [g["requests"] for g in groups("--by", "code", "--tag", "team=réd")] == [1]
    assert [
        g["requests"] for g in groups("--by", "", "--tenant", "acme", "--since", "1970-01-01T00:00:01Z")
    ] == [1]


def test_a_sum_has_the_savings_of_the_cache_at_the_prices_of_the_settings(radixgate, tmp_path):
    prices = {"input": 3, "cached_input": 0.5, "output": 6}
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps({"models": [{"name": "m", "prices": prices}, {"name": "n"}]}))
    said = radixgate("usage", "--json", "--config", str(file))[1]
    saved = {group["model"]: group["saved"] for group in map(json.loads, said.splitlines())}
    assert saved == {"m": 10, "n": 0}


def test_single_requests_are_exported_in_every_form(radixgate, tmp_path):
    code, said, _ = radixgate("usage", "--export", "csv")
    rows = [*csv.DictReader(said.splitlines())]
    assert [row["request_id"] for row in rows] == ["r1", "r2", "r3"]
    # A spreadsheet would compute it.
    assert rows[0]["user"] == "'=1+1"
    code, said, _ = radixgate("usage", "--export", "json", "--tenant", "acme")
    found = [json.loads(line) for line in said.splitlines()]
    assert [(row["user"], row["tags"]) for row in found] == [
        ("=1+1", {"team": "réd"}),
        (None, {"team": "blue"}),
    ]
    file = tmp_path / "usage.parquet"
    code, said, _ = radixgate("usage", "--export", "parquet", "-o", str(file))
    assert (code, said) == (0, f"3 requests in {file}\n")
    table = parquet.read_table(file).to_pylist()
    assert [(row["request_id"], row["cost"], row["ttft_ms"]) for row in table] == [
        ("r1", 1_500_000, 7),
        ("r2", 1_500_000, 7),
        ("r3", 1_500_000, None),
    ]


def test_an_impossible_query_is_refused_in_one_line(radixgate):
    for arguments, said in (
        (("--by", "colour"), "--by: unknown: 'colour'; choose from hour, day,"),
        (("--since", "soon"), "--since: expected a day or a time"),
        (("--tag", "team"), "--tag: expected NAME=VALUE"),
        (("--export", "xls"), "--export xls: there are csv, json, parquet"),
        (("--export", "parquet"), "--export parquet needs a file"),
    ):
        code, out, err = radixgate("usage", *arguments)
        assert (code, out) == (2, "")
        assert err.startswith(f"radixgate: {said}")
        assert err.count("\n") == 1


def test_changes_by_command_stand_in_the_audit_log(radixgate):
    assert radixgate("plans", "set", "free", "--concurrency", "2")[0] == 0
    assert radixgate("tenants", "set", "acme", "--plan", "free")[0] == 0
    lines = [line.split() for line in radixgate("audit", "list")[1].splitlines()[1:]]
    assert [line[3:] for line in lines] == [["create", "tenants", "acme"], ["create", "plans", "free"]]
    assert all(line[2].startswith("cli:") for line in lines)
    code, said, _ = radixgate("audit", "verify")
    assert (code, said[:33]) == (0, "The chain is complete: 2 entries.")
    noted = said.split()[-1]
    assert radixgate("plans", "set", "free", "--concurrency", "3")[0] == 0
    assert radixgate("audit", "verify", "--expect", noted)[0] == 0
    code, said, _ = radixgate("audit", "verify", "--expect", f"9:{'0' * 64}")
    assert (code, said) == (1, "Entry 9 is not in the log as expected: the log was cut off or replaced.\n")


def test_an_operators_token_is_shown_once_and_ends(radixgate):
    code, token, _ = radixgate("operators", "create", "ada", "--role", "owner", "--quiet")
    assert (code, token[:5]) == (0, "rgop-")
    identity = token.split("-")[1]
    assert radixgate("operators", "list")[1].splitlines()[1].split() == [identity, "ada", "owner", "active"]
    assert token.strip() not in radixgate("operators", "list", "--json")[1]
    assert radixgate("operators", "revoke", identity) == (0, "", "")
    assert radixgate("operators", "list")[1].splitlines()[1].split()[-1] == "ended"
    assert radixgate("operators", "revoke", "nobody")[0] == 1
    assert radixgate("operators", "create", "ada", "--role", "king")[0] == 2
    subjects = [
        line.split()[3:] for line in radixgate("audit", "list", "--kind", "operators")[1].splitlines()[1:]
    ]
    assert subjects == [["revoke", "operators", identity], ["create", "operators", identity]]
