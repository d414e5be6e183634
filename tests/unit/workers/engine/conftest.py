"""Tiny checkpoints, built once, and small ways to run an engine over them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.request import Output, Request
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.tiny_checkpoint import build

torch.set_num_threads(1)

VARIANTS: dict[str, dict[str, Any]] = {
    f"{architecture}-{name}": {"architecture": architecture, "kv_heads": kv_heads}
    for architecture in ("llama", "qwen2", "qwen3", "mistral")
    for name, kv_heads in (("mha", 4), ("gqa", 2), ("mqa", 1))
}

WINDOWS = {
    "mistral-window": {"architecture": "mistral", "kv_heads": 2, "window": 19},
    "mistral-window-of-two": {"architecture": "mistral", "kv_heads": 2, "window": 2},
    "qwen2-window": {"architecture": "qwen2", "kv_heads": 2, "window": 16},
    "qwen3-window": {"architecture": "qwen3", "kv_heads": 1, "window": 33},
}
"""A Mistral slides in all layers, a Qwen in its upper half."""


@dataclass
class Answer:
    """Everything that an engine said about one request."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def add(self, output: Output) -> None:
        self.tokens += output.tokens
        self.text += output.text
        self.finish = output.finish
        self.prompt_tokens = output.prompt_tokens
        self.cached_tokens = output.cached_tokens
        self.completion_tokens = output.completion_tokens


def finish_all(engine: Engine, requests: Iterable[Request]) -> dict[str, Answer]:
    """Submit everything, then step until nothing is left."""
    answers: dict[str, Answer] = {}
    for request in requests:
        engine.submit(request)
        answers[request.id] = Answer()
    while engine.has_work:
        for output in engine.step():
            answers[output.id].add(output)
    engine.tree.check()
    return answers


def greedy(max_tokens: int, **others: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **others)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a variant, built at the first use."""
    root = tmp_path_factory.mktemp("checkpoints")

    def directory(variant: str) -> Path:
        shape = {"hidden": 64, "layers": 2, "heads": 4, "intermediate": 96, "vocab": 512, "context": 512}
        return build(root / variant, **shape, **(VARIANTS | WINDOWS)[variant], init=0.3)

    return directory


@pytest.fixture
def load(checkpoint: Callable[[str], Path]) -> Callable[..., Engine]:
    """An engine of a variant with the settings given."""

    def engine(variant: str = "llama-gqa", **settings: Any) -> Engine:
        return Engine.load(EngineConfig(**{"model": checkpoint(variant), "seed": 0, **settings}))

    return engine


@pytest.fixture
def finish() -> Callable[[Engine, Iterable[Request]], dict[str, Answer]]:
    """Runs an engine until it is idle; answers by request."""
    return finish_all


@pytest.fixture
def copy(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A checkpoint that a test may break."""
    for file in checkpoint("llama-gqa").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path
