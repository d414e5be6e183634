"""The engine can be copied to a machine that has torch, numpy, safetensors and tokenizers, and nothing of ours."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
SECONDS_MAX = 500
"""It takes ten on a quiet machine."""


def check(copy: Path) -> subprocess.CompletedProcess[str]:
    """Runs the check over a copy of the engine."""
    (copy / "workers").mkdir(parents=True)
    # Without it the package that is installed here would be found first.
    (copy / "workers" / "__init__.py").touch()
    shutil.copytree(ROOT / "workers" / "engine", copy / "workers" / "engine")
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "engine_alone" / "check.py")],
        env={**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"},
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )


@pytest.mark.timeout(SECONDS_MAX + 60)
def test_a_copy_of_the_engine_runs_alone(tmp_path: Path) -> None:
    done = check(tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    assert f"engine from {tmp_path / 'copy'}" in done.stdout
