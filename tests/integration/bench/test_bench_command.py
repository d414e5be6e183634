"""`radixgate bench` against a whole gateway with an embedded worker."""

import asyncio
import json
import sys

import pytest
import yaml
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.cli.support.command_error import CommandError
from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.conftest import MODEL


async def bench(*arguments):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "bench", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 90)
    return process.returncode, out.decode(), err.decode()


async def test_a_workload_of_two_tenants_has_the_cache_hits_of_its_trace(
    gateway, embedded, model_settings, checkpoint, tmp_path
):
    tenants, figures, page = tmp_path / "tenants.yaml", tmp_path / "out.json", tmp_path / "out.html"
    async with gateway(embedded[0], kind="embedded", **model_settings) as running:
        callers = [{"name": name, "key": key.text} for name, key in running.keys.items()]
        tenants.write_text(yaml.safe_dump(callers), encoding="utf-8")
        code, out, err = await bench(
            *(running.url, "--model", MODEL, "--tenants", tenants, "--tokenizer", checkpoint),
            *("--workload", "chat", "--requests", 12, "--rate", 50, "--speed", 50),
            *("--prompt-tokens-max", 1200, "--output-tokens-max", 3, "--json", figures, "--html", page),
        )
    assert code == 0, err
    written = json.loads(figures.read_text())
    told = written["settings"]
    assert (told["requests"], told["rate"], told["speed"], told["tenants"]) == (12, 50, 50, 2)
    run = written["runs"][MODEL]
    assert run["all"]["requests"] == 12
    assert run["all"]["errors"] == 0, run["all"]["errors_by_code"]
    assert set(run["tenants"]) <= {"acme", "globex"}
    assert run["all"]["cached_tokens"] > 0
    assert abs(written["settings"]["prompt_tokens_to_wanted"] - 1) < 0.05
    assert "TTFT p50" in out
    assert "<svg" in page.read_text()


async def test_a_server_that_refuses_everything_is_a_failure_with_its_reason():
    refusal = {"error": {"code": "no_such_key", "message": "no", "type": "invalid_request_error"}}
    async with ScriptedWorker() as worker:
        worker.then(status=401, body=refusal)
        code, _, err = await bench(worker.url, "--model", "m", "--requests", 2, "--speed", 100)
    assert code == 1
    assert "no request was answered: no_such_key" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "expected http:// or https://"),
        (["http://localhost:1", "--workload", "none"], "--workload: 'none' is not one of"),
        (["http://localhost:1", "--trace", "none.jsonl"], "none.jsonl cannot be read"),
        (["http://localhost:1", "--body", "[]"], "--body: must be a JSON object"),
        (["http://localhost:1", "--tokenizer", "/nowhere"], "tokenizer.json cannot be read"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_sent(arguments, says):
    refusal = CliRunner().invoke(app, ["bench", *arguments, "--model", "m"]).exception
    assert isinstance(refusal, CommandError)
    assert refusal.exit_code == 2
    assert says in str(refusal)


def test_a_server_that_does_not_listen_stops_the_run_at_once():
    arguments = ["bench", "http://127.0.0.1:9", "--model", "m"]
    refusal = CliRunner().invoke(app, arguments).exception
    assert isinstance(refusal, CommandError)
    assert str(refusal) == "http://127.0.0.1:9: cannot connect: Connection refused"
