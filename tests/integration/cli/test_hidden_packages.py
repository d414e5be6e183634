"""Folders of the user with the names of radixgate's packages do not hide these."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import PACKAGES

PROGRAM = Path(sys.executable).with_name("radixgate")


@pytest.fixture
def crowded(tmp_path):
    """A directory with a package of the user for each name of a package of radixgate."""
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the wrong package')")
    return tmp_path


def run(directory, *command, **environment):
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(not PROGRAM.exists(), reason="radixgate is not installed")
def test_the_program_runs_beside_folders_of_the_same_names(crowded):
    code, output, errors = run(crowded, PROGRAM, "check-config", "--set", "workers=['http://127.0.0.1:9']")
    assert (code, errors) == (0, "")
    assert "1 worker" in output


@pytest.mark.skipif(not PROGRAM.exists(), reason="radixgate is not installed")
def test_its_gateway_processes_start_beside_folders_of_the_same_names(crowded):
    settings = [
        "workers=['http://127.0.0.1:9']",
        "listen.port=0",
        "admin.port=0",
        "redis.url=redis://127.0.0.1:9",
    ]
    options = [word for setting in settings for word in ("--set", setting)]
    with subprocess.Popen(
        [PROGRAM, "serve", "--processes", "2", *options],
        cwd=crowded,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as gateway:
        try:
            assert gateway.stdout.readline().startswith("radixgate ready at ")
        finally:
            gateway.terminate()


def test_a_folder_that_hides_a_package_is_named(tmp_path):
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "__init__.py").write_text("")
    code, _, errors = run(tmp_path, sys.executable, "-m", "gateway", "--version", PYTHONPATH=os.getcwd())
    assert code == 1
    assert errors.startswith(f"radixgate: {tmp_path}/policies hides radixgate's own package 'policies'")
