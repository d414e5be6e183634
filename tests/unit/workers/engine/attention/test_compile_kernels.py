"""The kernels compile to machine code for a CUDA device, where there is none too."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[5]
SECONDS_MAX = 500
"""It takes fifteen on a quiet machine."""


@pytest.mark.timeout(SECONDS_MAX + 60)
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is for Linux only")
def test_the_kernels_compile_for_compute_capability_9_0(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.workers.engine.attention.compile_kernels", "90"],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    kernels = [line.split()[0] for line in done.stdout.splitlines()]
    assert kernels == ["decode_kernel", "decode_kernel", "prefill_kernel", "merge_kernel"]
