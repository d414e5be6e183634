"""`radixgate bench` beside aiperf: the same trace at the same server, and the same figures.

The server's times are known (a scripted worker), so that both can also be held against the truth. aiperf wants its
tokenizer from a hub's cache: one is laid out for it, since a local directory is looked up as a name.
"""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from policies.simulation.trace import read_trace
from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.bench.test_bench_command import bench
from workers.engine import tiny_checkpoint

AIPERF = Path(__file__).parents[2] / ".tools" / "aiperf" / "venv" / "bin" / "aiperf"
REVISION = "0" * 40
REQUESTS, TOKENS, FIRST_SECONDS, GAP_SECONDS = 40, 20, 0.25, 0.025


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub's cache with one tokenizer, `lab/tok`."""
    home = tmp_path_factory.mktemp("hub")
    checkpoint = tiny_checkpoint.build(tmp_path_factory.mktemp("model") / "tiny", hidden=64, layers=2)
    model = home / "hub" / "models--lab--tok"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(REVISION)
    snapshot = model / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    for file in checkpoint.glob("*.json"):
        shutil.copy(file, snapshot)
    return home


@pytest.fixture
def trace(tmp_path):
    """Ten requests a second; the first block is common, the second is each one's own."""
    path = tmp_path / "trace.jsonl"
    lines = (
        {"timestamp": 100 * at, "input_length": 812, "output_length": TOKENS, "hash_ids": [0, 100 + at]}
        for at in range(REQUESTS)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(read_trace(path)) == REQUESTS
    return path


async def aiperf(url, trace, hub, directory):
    """Its figures, by name."""
    process = await asyncio.create_subprocess_exec(
        *(AIPERF, "profile", "--model", "m", "--tokenizer", "lab/tok", "--url", url),
        *("--endpoint-type", "chat", "--streaming", "--input-file", trace),
        *("--custom-dataset-type", "mooncake_trace", "--fixed-schedule", "--fixed-schedule-auto-offset"),
        *("--random-seed", "1", "--ui", "none", "--use-server-token-count", "--artifact-dir", directory),
        env={**os.environ, "HF_HOME": str(hub), "HF_HUB_OFFLINE": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0, out.decode()[-3000:]
    return json.loads((directory / "profile_export_aiperf.json").read_text())


async def test_both_report_the_same_true_figures_of_one_server(trace, hub, tmp_path):
    if not AIPERF.exists():
        pytest.skip("aiperf is not installed; tests/peers/install_aiperf says why")
    async with ScriptedWorker() as worker:
        worker.then(first_after=FIRST_SECONDS, gap=GAP_SECONDS, tokens=TOKENS)
        theirs = await aiperf(worker.url, trace, hub, tmp_path / "aiperf")
        asked_by_them = len(worker.seen)
        figures = tmp_path / "ours.json"
        code, _, err = await bench(worker.url, "--model", "m", "--trace", trace, "--json", figures)
        assert code == 0, err
        ours = json.loads(figures.read_text())["runs"]["m"]["all"]
    assert asked_by_them == len(worker.seen) - asked_by_them == REQUESTS
    assert ours["errors"] == 0
    for name, their, our, truth in (
        ("TTFT", theirs["time_to_first_token"]["p50"], ours["ttft_ms_p50"], 1000 * FIRST_SECONDS),
        ("ITL", theirs["inter_token_latency"]["p50"], ours["tpot_ms_p50"], 1000 * GAP_SECONDS),
        (
            "whole",
            theirs["request_latency"]["p50"],
            ours["e2e_ms_p50"],
            1000 * (FIRST_SECONDS + (TOKENS - 1) * GAP_SECONDS),
        ),
    ):
        print(f"{name}: aiperf {their:.1f} ms, radixgate bench {our:.1f} ms, the server {truth:.1f} ms")
        assert our == pytest.approx(their, rel=0.15), name
        assert our == pytest.approx(truth, rel=0.25), name
