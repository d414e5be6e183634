"""Server programs of tests end with the process that started them, however it ends."""

import subprocess
import sys

import pytest

STARTS_AND_DIES = """
import os, pathlib, signal
from tests.stage import server_program
{setup}
program = server_program.start_program(["sleep", "60"])
while "sleep" not in pathlib.Path(f"/proc/{{program.pid}}/comm").read_text():
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends them")
@pytest.mark.parametrize(
    "setup", ["", "server_program._has_setpriv = lambda: False"], ids=["setpriv", "fork"]
)
def test_a_program_ends_with_the_process_that_started_it(setup):
    code = STARTS_AND_DIES.format(setup=setup)
    # The pipe is the program's too: only when that has ended, no more can come.
    died = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert (died.returncode, died.stderr) == (-9, "")
