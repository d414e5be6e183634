"""Real embedded workers as processes, for tests of the whole."""

import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from gateway import pipeline
from gateway.fleet.loads import WorkerLoad
from gateway.telemetry.request_record import RequestRecord
from policies.speeds import LearntSpeed
from tests.stage.forks import WORKER, BlockingFork, fork_blocking
from workers.engine import tiny_checkpoint
from workers.load_reports.engine_loads import NO_LOAD
from workers.worker import Speed

MODEL = "tiny"
PAGE_SIZE = 16


class EmbeddedWorker:
    """`radixgate worker` in a process of its own, a fork."""

    def __init__(self, checkpoint: Path, log: Path, *options: str) -> None:
        self.url = ""
        self._log = log
        self._arguments = [
            *("worker", "--model", str(checkpoint), "--served-model-name", MODEL),
            *("--page-size", str(PAGE_SIZE), "--kv-tokens", "8192", "--threads", "1", *options),
        ]
        self.process: BlockingFork | None = None

    def start(self, port: int = 0) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with self._log.open("ab") as errors:
            self.process = fork_blocking(
                *("gateway", *self._arguments, "--port", str(port)),
                environment=environment,
                errors=errors,
                imported=WORKER,
            )
        for line in self.process.stdout:
            if found := re.search(r"worker ready at (\S+)", line):
                self.url = found[1]
                return
        raise AssertionError(self._log.read_text()[-2000:])

    def flush(self) -> None:
        with urlopen(Request(f"{self.url}/flush_cache", method="POST"), timeout=10) as answer:
            assert answer.status == 200

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=20)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint.build(tmp_path_factory.mktemp("model") / MODEL, hidden=64, layers=2)


@pytest.fixture(scope="session")
def embedded_pair(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EmbeddedWorker, EmbeddedWorker]]:
    logs = tmp_path_factory.mktemp("workers")
    workers = [EmbeddedWorker(checkpoint, logs / f"{name}.log") for name in "ab"]
    for worker in workers:
        worker.start()
    yield workers[0], workers[1]
    for worker in workers:
        worker.kill()


@pytest.fixture
def embedded(embedded_pair: tuple[EmbeddedWorker, EmbeddedWorker]) -> tuple[EmbeddedWorker, EmbeddedWorker]:
    """Two real workers with empty caches."""
    for worker in embedded_pair:
        worker.flush()
    return embedded_pair


@pytest.fixture(scope="session")
def embedded_halves(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EmbeddedWorker, EmbeddedWorker]]:
    """A real prefill worker and a real decode worker."""
    logs = tmp_path_factory.mktemp("halves")
    halves = [
        EmbeddedWorker(checkpoint, logs / f"{mode}.log", "--disaggregation-mode", mode, *more)
        for mode, more in (("prefill", ("--disaggregation-bootstrap-port", "0")), ("decode", ()))
    ]
    for half in halves:
        half.start()
    yield halves[0], halves[1]
    for half in halves:
        half.kill()


@pytest.fixture
def steady_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of one constant speed, with no load from outside: only their caches tell them apart.

    On a busy machine one slow answer would teach a speed, and one late probe report a load, that outweighs the
    few cached tokens of a test's prompt.
    """
    monkeypatch.setattr(LearntSpeed, "speed", Speed(ms_per_token=10.0))
    monkeypatch.setattr(WorkerLoad, "_beyond_gateways", lambda load, reported: NO_LOAD)


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[RequestRecord]:
    """Records of all requests, as they are written."""
    kept, notify = list[RequestRecord](), pipeline.notify

    def notified(observers: Iterable[Callable[[RequestRecord], None]], record: RequestRecord) -> None:
        kept.append(record)
        notify(observers, record)

    monkeypatch.setattr(pipeline, "notify", notified)
    return kept


@pytest.fixture
def model_settings(checkpoint: Path) -> dict[str, str]:
    """The gateway's entry for the model of these workers."""
    entry = f'{{"name": "{MODEL}", "tokenizer": "{checkpoint}", "block_size": {PAGE_SIZE}, "context_length": 4096}}'
    return {"models": f"[{entry}]"}
