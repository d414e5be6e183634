"""Very long prompts: the same tokens from a process as from here, whatever becomes of it."""

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import BadRequest, PromptTooLong
from gateway.tokenization import encoder_child, encoder_processes, text_encoder, text_splitter
from gateway.tokenization.encoder_processes import EncoderProcesses, EncoderUnavailable
from gateway.tokenization.encoder_threads import EncoderThreads
from gateway.tokenization.text_splitter import TextSplitter
from gateway.tokenization.tokenizer_encoder import TokenizerEncoder
from gateway.tokenization.tokenizer_file import read_tokenizer
from tests.unit.gateway.tokenization.test_tokenizer_encoder import (
    ACME,
    chat,
    checkpoint,
    complete,
    said,
    tokens,
)

__all__ = ["checkpoint"]

LONG = "Ωmega and <|im_end|> 漢字 \n\n" + " ".join(f"word{n}" for n in range(20_000))


@pytest.fixture
def processes():
    found = EncoderProcesses()
    yield found
    found.close()


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield EncoderThreads(pool)


@pytest.fixture
def digest(checkpoint):
    return read_tokenizer(checkpoint)[1]


@pytest.fixture
def elsewhere(checkpoint, threads, processes):
    return TokenizerEncoder.from_directory(checkpoint, threads, 1, 2**20, processes)


@pytest.fixture
def here(checkpoint, threads):
    return TokenizerEncoder.from_directory(checkpoint, threads, 1, 2**20)


@pytest.mark.parametrize(
    "request_", [chat(said(LONG)), complete(LONG), complete([LONG, "short"])], ids=["chat", "text", "texts"]
)
def test_a_process_finds_the_same_tokens(elsewhere, here, processes, request_):
    assert tokens(elsewhere, request_) == tokens(here, request_)
    assert len(processes.pids()) == 1


def test_what_is_short_needs_no_process(elsewhere, processes):
    assert tokens(elsewhere, chat(said("short " * 2000)))
    assert processes.pids() == set()


def test_one_process_answers_again_and_again(elsewhere, processes):
    seen = set()
    for number in range(3):
        tokens(elsewhere, complete(f"{number} {LONG}"))
        seen |= processes.pids()
    assert len(seen) == 1


def test_one_that_died_is_replaced_and_nothing_is_lost(elsewhere, here, processes):
    tokens(elsewhere, complete(LONG))
    (dead,) = processes.pids()
    os.kill(dead, signal.SIGKILL)
    assert tokens(elsewhere, complete("x" + LONG)) == tokens(here, complete("x" + LONG))
    assert dead not in processes.pids()


def dying(processes, times):
    """The next so many die as they are asked."""
    take = processes.take

    def taken():
        nonlocal times
        process = take()
        if times:
            times -= 1
            os.kill(process.pid, signal.SIGKILL)
        return process

    processes.take = taken


def test_one_that_dies_at_work_is_replaced_once(elsewhere, here, processes):
    dying(processes, 1)
    assert tokens(elsewhere, complete(LONG)) == tokens(here, complete(LONG))


def test_a_text_that_ends_two_processes_is_refused_and_remembered(elsewhere, here, processes, monkeypatch):
    dying(processes, 2)
    own_process = []
    monkeypatch.setattr(elsewhere._encoder, "encode", lambda *_, **more: own_process.append(more))
    with pytest.raises(BadRequest):
        tokens(elsewhere, complete(LONG))
    started = processes.pids()
    with pytest.raises(BadRequest):
        tokens(elsewhere, complete(LONG))
    assert processes.pids() == started
    assert own_process == []
    assert tokens(elsewhere, complete("x" + LONG)) == tokens(here, complete("x" + LONG))
    monkeypatch.setattr(encoder_processes, "FAILED_SECONDS", 0.0)
    assert tokens(elsewhere, complete(LONG)) == tokens(here, complete(LONG))


def test_a_text_that_takes_too_much_memory_is_refused(elsewhere, here, processes, monkeypatch):
    """It is one word of the tokenizer, which cannot be cut."""
    with pytest.raises(BadRequest):
        asyncio.run(elsewhere.encode(complete("1" * 4_000_000), ACME, 10_000_000))
    assert tokens(elsewhere, complete(LONG)) == tokens(here, complete(LONG))


@pytest.mark.parametrize("make", [complete, lambda text: chat(said(text))], ids=["completion", "chat"])
def test_a_text_of_too_many_tokens_is_refused_by_a_part_of_it(elsewhere, processes, make, monkeypatch):
    monkeypatch.setattr(elsewhere, "_token_bytes_max", None)  # As if its vocabulary had a very long token.
    for text in ("1" * 8_000_000, "word " * 1_600_000):
        with pytest.raises(PromptTooLong) as refused:
            asyncio.run(elsewhere.encode(make(text), ACME, 131_072))
        assert 131_072 <= refused.value.tokens < 1_000_000
    (pid,) = processes.pids()
    peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert int(peak[1]) < 300_000


def test_one_that_is_stopped_holds_its_thread_for_a_while_only(elsewhere, here, processes, monkeypatch):
    tokens(elsewhere, complete(LONG))
    (stopped,) = processes.pids()
    monkeypatch.setattr(encoder_processes, "START_SECONDS_MAX", 0.1)
    os.kill(stopped, signal.SIGSTOP)
    assert tokens(elsewhere, complete("x" + LONG)) == tokens(here, complete("x" + LONG))
    assert gone(stopped)


def test_one_that_is_in_time_is_left_alone_afterwards(elsewhere, processes, monkeypatch):
    timers = []

    class Timer(threading.Timer):
        def __init__(self, *args):
            super().__init__(*args)
            timers.append(self)

    monkeypatch.setattr(encoder_processes.threading, "Timer", Timer)
    tokens(elsewhere, complete(LONG))
    (timer,) = timers
    timer.join(60)
    assert not timer.is_alive()
    assert len(processes.pids()) == 1


def test_without_processes_the_thread_does_it(elsewhere, here, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert tokens(elsewhere, complete(LONG)) == tokens(here, complete(LONG))


def test_another_tokenizer_than_was_read_here_is_not_used(checkpoint, processes):
    with pytest.raises(EncoderUnavailable):
        processes.job(str(checkpoint), "another digest", [LONG], special=True).tokens()


@pytest.mark.parametrize("long", [True, False], ids=["ended", "finished"])
async def test_a_client_that_leaves_ends_a_very_long_work(
    checkpoint, digest, processes, threads, monkeypatch, long
):
    """A shorter one is finished, for the sake of the process."""
    monkeypatch.setattr(encoder_processes, "KILL_CHARACTERS_MIN", 0 if long else 10**9)
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    take = processes.take

    def taken():
        process = take()
        loop.call_soon_threadsafe(asked.set)
        return process

    processes.take = taken
    encoder = TokenizerEncoder.from_directory(checkpoint, threads, 1, 2**20, processes)
    task = asyncio.create_task(encoder.encode(complete(LONG * (10 if long else 2)), ACME, None))
    await asked.wait()
    (pid,) = processes.pids()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # The next one of the same tenant has its turn when the thread is free again.
    assert await encoder.encode(complete(LONG), ACME, None)
    assert (pid in processes.pids()) is not long


def test_a_text_that_no_request_waits_for_is_not_begun(checkpoint, digest, processes):
    work = processes.job(str(checkpoint), digest, [LONG], special=True)
    work.abandon()
    with pytest.raises(EncoderUnavailable):
        work.tokens()
    assert processes.pids() == set()


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_it_keeps_the_tokenizers_that_were_used_last(monkeypatch):
    read = []
    monkeypatch.setattr(
        encoder_child, "_read_same_tokenizer", lambda directory, digest: read.append(directory)
    )
    monkeypatch.setattr(encoder_child, "TOKENIZERS_MAX", 2)
    asked = BytesIO()
    for directory in "abacab":
        encoder_child.write_request(asked, encoder_child.EncodeRequest(directory, "", True, 1), ["x"])
    asked.seek(0)
    encoder_child.serve(asked, BytesIO())
    assert read == ["a", "b", "c", "b"]


HERE = """
import sys
from gateway.tokenization.encoder_processes import EncoderProcesses
processes = EncoderProcesses()
print(processes.job(*sys.argv[1:3], ["a"], special=True).tokens())
processes.close()
"""


def test_it_is_made_of_our_modules_wherever_the_gateway_was_started(checkpoint, digest, tmp_path):
    """Not of files that lie there under the same names."""
    (tmp_path / "here.py").write_text(f"import sys; sys.path.insert(0, {str(Path.cwd())!r})\n{HERE}")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "msgspec.py").write_text("raise SystemExit('another one')")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "here.py"), str(checkpoint), digest],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert (done.returncode, "another one" in done.stderr) == (0, False), done.stderr


GATEWAY = """
import sys
from gateway.tokenization.encoder_processes import EncoderProcesses
processes = EncoderProcesses()
processes.job(*sys.argv[1:3], ["a"], special=True).tokens()
print(*processes.pids(), flush=True)
if sys.argv[3] == "working":
    processes.job(*sys.argv[1:3], ["a b c " * 10_000_000], special=True).tokens()
sys.stdin.read()
"""


@pytest.mark.parametrize("doing", ["idle", "working"])
def test_it_ends_with_its_gateway_however_that_ends(checkpoint, digest, doing):
    gateway = subprocess.Popen(
        [sys.executable, "-c", GATEWAY, str(checkpoint), digest, doing],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with gateway:
        pid = int(gateway.stdout.readline())
        gateway.kill()
    deadline = time.monotonic() + 60
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone(pid)


SPECIAL = ("<a>", "<a><b>", "<ab", "b>")


@given(text=st.text("<ab> ", max_size=60), size=st.integers(1, 8))
def test_a_text_is_cut_at_the_same_places_in_slices(text, size):
    splitter = TextSplitter(SPECIAL)
    whole = list(splitter.pieces(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_splitter, "SLICE_CHARACTERS", size)
        assert list(splitter.pieces(text)) == whole
    assert "".join(whole) == text
    assert "" not in whole


def test_a_long_conversation_has_the_tokens_of_its_messages(elsewhere, here, monkeypatch):
    """Cut in slices, rendered in a thread, and some of it remembered."""
    monkeypatch.setattr(text_splitter, "SLICE_CHARACTERS", 1000)
    chance = random.Random(3)
    messages = said(*(" ".join(chance.choices(["a", "word", "Ω"], k=20_000)) for _ in range(6)))
    for upto in (2, 4, 6):
        request = chat(messages[:upto])
        assert request.body_bytes > text_encoder.LONG_BYTES or upto == 2
        assert tokens(elsewhere, request) == tokens(here, request)
