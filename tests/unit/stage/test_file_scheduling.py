"""A test process that dies fails one test; all others are run, and the run ends."""

import subprocess
import sys

import pytest

CONFTEST = """
from tests.stage.file_scheduling import FileScheduling

def pytest_xdist_make_scheduler(config, log):
    return FileScheduling(config, log)
"""
LATE_SECOND_FILE = """
import time
from xdist.workermanage import WorkerController

send = WorkerController.send_runtest_some
begun = set()

def send_the_second_file_late(node, indices):
    if node in begun:
        time.sleep(1)
    begun.add(node)
    send(node, indices)

WorkerController.send_runtest_some = send_the_second_file_late
"""
FILES = {
    "test_a.py": "import os, time\ndef test_dies(): time.sleep(0.2); os._exit(3)\ndef test_after_it(): pass\n",
    "test_b.py": "import time\ndef test_one(): time.sleep(0.3)\ndef test_two(): pass\n",
    "test_c.py": "def test_alone(): pass\n",
}


def outcome(directory, files):
    """Return what pytest prints, when two processes have run the tests of these files."""
    for name, text in files.items():
        (directory / name).write_text(text)
    options = [
        "-n2",
        "--dist=loadfile",
        "--no-loadscope-reorder",
        "-p",
        "no:schemathesis",
        "-p",
        "no:asyncio",
    ]
    command = [sys.executable, "-m", "pytest", f"--rootdir={directory}", *options, str(directory)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return run.stdout + run.stderr


@pytest.mark.parametrize(
    "conftest",
    [
        pytest.param(CONFTEST, id="at any time"),
        pytest.param(CONFTEST + LATE_SECOND_FILE, id="while its second file is sent"),
    ],
)
def test_a_process_that_dies_fails_its_test_and_the_others_are_run(tmp_path, conftest):
    output = outcome(tmp_path, {"conftest.py": conftest, **FILES})
    assert "1 failed, 4 passed" in output, output
    assert "test_a.py::test_dies" in output


def test_all_tests_are_run_when_a_process_dies_after_many_files(tmp_path):
    many = {f"test_{number:02}.py": "import time\ndef test_it(): time.sleep(0.1)\n" for number in range(60)}
    dies = {"test_12.py": "import os, time\ndef test_dies(): time.sleep(0.2); os._exit(3)\n"}
    assert "1 failed, 59 passed" in outcome(tmp_path, {"conftest.py": CONFTEST, **many, **dies})
