"""`radixgate worker --engine`: its options, its ports, and when a launched engine has nothing to do any more."""

import socket
from types import SimpleNamespace

import pytest

from gateway.cli.command_registry import CommandGroup
from gateway.cli.support import launch_engine
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.free_ports import free_ports
from gateway.cli.support.launch_engine import IDLE_PROBES, _wait_until_idle
from workers.adapter import WorkerFailed
from workers.launching.launch import EngineState
from workers.probing.installed_engine import EngineAbilities


class Saying:
    """An adapter whose engine says of its streams one thing a look, and the last one for ever."""

    def __init__(self, *streams):
        self.streams = list(streams)
        self.looks = 0

    async def probe(self):
        self.looks += 1
        said = self.streams.pop(0) if len(self.streams) > 1 else self.streams[0]
        if said == "unreachable":
            raise WorkerFailed("too busy")
        return SimpleNamespace(load=None if said is None else SimpleNamespace(streams=said))


async def looks(*streams, seconds_max=30.0, up=True):
    adapter, state = Saying(*streams), EngineState(up=up)
    await _wait_until_idle(adapter, state, seconds_max, notice_seconds=0, probe_seconds=0)
    return adapter.looks


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ((0,), IDLE_PROBES),
        # The first answer may be of before: vLLM's load is not read with every probe.
        ((0, 2, 1, 0), 3 + IDLE_PROBES),
        ((1, "unreachable", 0), 2 + IDLE_PROBES),
        ((None,), 1),
    ],
    ids=["idle", "said-late", "busy", "does-not-say"],
)
async def test_an_engine_is_idle_after_several_idle_reports_in_a_row(said, count):
    assert await looks(*said) == count


async def test_an_engine_that_is_never_idle_is_not_waited_for_for_ever():
    assert await looks(1, seconds_max=0.05) > IDLE_PROBES


async def test_an_engine_that_has_died_is_not_waited_for():
    assert await looks(1, up=False) == 0


def test_free_ports_stand_in_a_row_and_below_those_of_callers():
    first = free_ports("127.0.0.1", 4)
    assert 1024 < first < first + 3 < 32768
    for at in range(4):
        with socket.socket() as trial:
            trial.bind(("127.0.0.1", first + at))


@pytest.fixture
def given(monkeypatch):
    """What would be launched by a command."""
    found = []

    async def run(launch, *_):
        found.append(launch)

    monkeypatch.setattr(launch_engine, "_run", run)
    monkeypatch.setattr(launch_engine, "abilities_of", lambda engine, python: EngineAbilities())
    monkeypatch.setattr(launch_engine.logs, "configure_logging", lambda _: None)

    def launch(*words):
        command = CommandGroup().get_command(None, "worker")
        command.main(list(words), standalone_mode=False)
        return found[-1]

    return launch


@pytest.mark.parametrize("model", ["s3://bucket/model", "./model", "Qwen/Qwen3-8B"], ids=str)
def test_a_model_is_named_to_the_engine_as_it_was_named_here(given, model):
    assert given("--engine", "vllm", "--model", model).model == model


def test_events_of_all_ranks_and_their_replay_have_ports_of_their_own(given):
    words = ("--engine", "sglang", "--model", "m", "--kv-events-port", "5557", "--", "--dp-size", "4")
    launch = given(*words)
    assert (launch.events_port, launch.replay_port, launch.loads_port) == (5557, 5561, None)


def test_ports_without_a_setting_are_free_and_apart(given):
    launch = given("--engine", "vllm", "--model", "m", "--port", "0")
    assert launch.replay_port == launch.events_port + 1
    assert launch.port not in (0, launch.events_port, launch.replay_port)


def test_a_key_that_gateways_would_not_have_is_refused(given):
    with pytest.raises(
        CommandError, match="--api-key: gateways that find a worker by its registration have no"
    ):
        given(
            *("--engine", "vllm", "--model", "m", "--register", "redis://127.0.0.1:6379/0"),
            *("--", "--api-key", "s3cr3t"),
        )
