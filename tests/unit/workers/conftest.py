"""A tiny checkpoint for the tests of chat templates and of the engine's server."""

from pathlib import Path

import pytest

from workers.engine.tiny_checkpoint import build


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    return build(
        root / "tiny", hidden=32, layers=1, heads=2, kv_heads=1, intermediate=48, vocab=512, context=8192
    )
