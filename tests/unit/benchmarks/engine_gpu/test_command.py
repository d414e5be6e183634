"""The benchmark of the GPU path runs on any machine: it skips without a GPU, and tries itself on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.benchmarks.engine_gpu.__main__ import main
from tests.benchmarks.engine_gpu.peers import last_line

ROOT = Path(__file__).parents[4]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.engine_gpu", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_prints_skipped_and_ends_with_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["engine_gpu"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("SKIPPED:")


def test_on_the_cpu_it_measures_a_tiny_model_and_prints_why_others_are_skipped(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run("--device", "cpu", "--rounds", "1", "--json", str(report))
    assert done.returncode == 0, done.stderr
    runs = json.loads(report.read_text())["runs"]
    assert {*runs["radixgate"]} == {"batch_1", "batch_4"}
    assert all(figures["prefill_tokens_per_second"] > 0 for figures in runs["radixgate"].values())
    assert runs["vLLM"] == runs["nano-vllm"] == {"skipped": "needs a CUDA device"}
    assert "SKIPPED: vLLM: needs a CUDA device" in done.stdout


def test_the_reason_of_a_failure_is_its_last_error() -> None:
    assert (
        last_line("a\nERROR: No matching distribution found\n\nnotice\n")
        == "ERROR: No matching distribution found"
    )
    assert last_line("one\ntwo\n") == "two"
    assert last_line("") == "no output"
