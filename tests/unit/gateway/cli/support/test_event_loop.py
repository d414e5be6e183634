"""The event loop of commands: an interrupt before the coroutine starts leaves no warning."""

import asyncio
import gc
import warnings

import pytest

from gateway.cli.support.event_loop import run_loop


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


def test_the_result_of_the_coroutine_is_returned():
    assert run_loop(answer()) == 42


def test_an_interrupt_before_the_start_leaves_no_warning(monkeypatch):
    def interrupted(work):
        raise KeyboardInterrupt

    monkeypatch.setattr("uvloop.run", interrupted)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            run_loop(answer())
        gc.collect()
    assert [str(each.message) for each in shown if "never awaited" in str(each.message)] == []
