"""Child processes: started, restarted when they die, and quoted when they fail."""

import asyncio
import re
import sys

import pytest

from gateway.process.children import Child, ChildFailed

READY = re.compile(r"ready at (\S+)")


def child(tmp_path, program):
    return Child("child", lambda url: [sys.executable, "-c", program, url or ""], READY, tmp_path / "log")


async def test_a_child_is_started_again_at_the_same_place_when_it_dies(tmp_path):
    program = (
        "import sys, time\nprint('ready at', sys.argv[1] or 'http://here:1', flush=True)\ntime.sleep(60)"
    )
    one = child(tmp_path, program)
    assert await one.start(10) == "http://here:1"
    first = one.pid
    keeping = asyncio.create_task(one.restart_when_dead(10))
    one._process.kill()
    async with asyncio.timeout(60):
        while one.restarts == 0:
            await asyncio.sleep(0.01)
    assert one.url == "http://here:1"
    assert one.pid != first
    keeping.cancel()
    await one.stop()
    assert one._process.returncode is not None


async def test_a_child_that_ends_too_soon_is_quoted(tmp_path):
    one = child(tmp_path, "import sys\nsys.exit('no such model')")
    with pytest.raises(ChildFailed, match="no such model"):
        await one.start(10)


async def test_a_child_that_never_gets_ready_is_stopped(tmp_path):
    one = child(tmp_path, "import time\ntime.sleep(60)")
    with pytest.raises(ChildFailed, match=r"not ready after 0\.2 seconds"):
        await one.start(0.2)
    assert one._process.returncode is not None


class EndingProcess:
    """A process that ends while it is stopped: it cannot be signalled any more, and its exit code comes later."""

    pid = 1
    returncode = None

    def __init__(self):
        self.ended = asyncio.Event()

    def terminate(self):
        pass

    def kill(self):
        self.ended.set()
        raise ProcessLookupError

    async def wait(self):
        await self.ended.wait()


async def test_a_child_that_ends_while_it_is_killed_is_stopped(tmp_path):
    one = Child("child", lambda _: [], READY, tmp_path / "log", stop_seconds=0.01)
    one._process = EndingProcess()
    await one.stop()
    assert one._process.ended.is_set()
