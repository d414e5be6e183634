"""A fork prints, fails and ends as the program does."""

import re
import sys
from importlib.metadata import version

import pytest

from gateway.process.children import ChildFailed
from tests.stage.forks import ForkedChild

SECONDS_MAX = 60.0


def forked(tmp_path, *arguments):
    command = [sys.executable, "-m", "gateway", *arguments]
    return ForkedChild("gateway", lambda _: command, re.compile(r"radixgate (\S+)"), tmp_path / "log")


async def test_its_output_and_its_exit_code_are_those_of_the_program(tmp_path):
    child = forked(tmp_path, "--version")
    assert await child.start(SECONDS_MAX) == version("radixgate")
    assert await child._process.wait() == 0


async def test_its_failure_is_told_with_its_exit_code_and_its_last_line(tmp_path):
    with pytest.raises(ChildFailed, match=r"ended with code 2: .* No such command 'nothing'"):
        await forked(tmp_path, "nothing").start(SECONDS_MAX)
