"""Kinds of workers: the warning where the settings name another kind than the worker has."""

import logging

import pytest

from gateway.discovery import worker_kinds
from gateway.discovery.worker_kinds import WorkerKinds
from gateway.settings.workers import WorkerSettings
from gateway.wiring.fleet import target_of
from workers.adapter import WorkerFailed


@pytest.fixture
def answers(monkeypatch):
    """What workers answer, by address; None for one that does not answer."""
    found, asked = {}, []

    async def ask(target):
        asked.append(target.url)
        if found[target.url] is None:
            raise WorkerFailed("cannot connect")
        return found[target.url]

    monkeypatch.setattr(worker_kinds, "ask_kind", ask)
    return found, asked


@pytest.mark.parametrize(
    ("named", "answered", "warned"),
    [
        ("vllm", "sglang", True),
        ("vllm", "vllm", False),
        ("vllm", "openai", False),
        ("openai", "vllm", False),
        ("auto", "vllm", False),
        ("vllm", None, False),
    ],
)
async def test_another_kind_than_the_settings_name_is_logged_once(answers, caplog, named, answered, warned):
    caplog.set_level(logging.WARNING)
    found, _ = answers
    found["http://10.0.0.1:8000"] = answered
    kinds = WorkerKinds(target_of)
    worker = WorkerSettings(id="w0", kind=named, url="http://10.0.0.1:8000")
    for _ in range(2):
        await kinds.compare([worker])
    said = [text for text in caplog.messages if "w0 is of kind sglang, but its settings say vllm" in text]
    assert len(said) == warned
    assert len(caplog.messages) == warned


async def test_a_worker_is_identified_again_after_it_has_left_and_come_back(answers):
    found, asked = answers
    found["http://10.0.0.1:8000"] = "vllm"
    kinds = WorkerKinds(target_of)
    worker = WorkerSettings(id="w0", kind="vllm", url="http://10.0.0.1:8000")
    await kinds.compare([worker])
    kinds.keep_only([])
    await kinds.compare([worker])
    assert len(asked) == 2
