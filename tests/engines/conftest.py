"""One real vLLM and one real SGLang for all tests."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines.processes import CONTEXT_LENGTH, MODEL, Engine, Sglang, Vllm
from workers.engine import tiny_checkpoint

KINDS = ("vllm", "sglang")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint.build(tmp_path_factory.mktemp("model") / MODEL)


@pytest.fixture(scope="session")
def started(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Engine]]:
    logs = tmp_path_factory.mktemp("engines")
    engines = {new.kind: new(checkpoint, logs / f"{new.kind}.log") for new in (Vllm, Sglang)}
    try:
        # Most of a start is spent on imports: both at once take little longer than one.
        for engine in engines.values():
            engine.start()
        for engine in engines.values():
            engine.wait()
        yield engines
    finally:
        for engine in engines.values():
            engine.kill()


@pytest.fixture
def engines(started: dict[str, Engine]) -> dict[str, Engine]:
    """Both, with empty caches."""
    for engine in started.values():
        engine.flush()
        # vLLM says that its cache is empty with its next step.
        engine.complete()
    return started


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, engines: dict[str, Engine]) -> Engine:
    return engines[request.param]


@pytest.fixture
def model_of(checkpoint: Path) -> Callable[[int], dict[str, str]]:
    """The gateway's entry for the model, with blocks of so many tokens."""

    def entry(block_size: int) -> dict[str, str]:
        model = {"name": MODEL, "tokenizer": str(checkpoint), "block_size": block_size}
        return {"models": json.dumps([{**model, "context_length": CONTEXT_LENGTH}])}

    return entry
