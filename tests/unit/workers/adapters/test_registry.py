"""Kinds of workers that packages bring: looked for once, and loaded for workers of that kind alone."""

import importlib.metadata

import pytest

from workers.adapter import WorkerTarget
from workers.adapters import registry

TARGET = WorkerTarget(id="w", url="http://localhost:1")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with a kind `plugged`, which is `of` its module."""

    def install(of, name="plugged"):
        (tmp_path / "adapter_module.py").write_text("def adapter(target):\n    return ('made', target.url)\n")
        about = tmp_path / "adapter-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: adapter\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{name} = {of}\n")
        monkeypatch.syspath_prepend(tmp_path)

    registry.adapters.cache_clear()
    yield install
    registry.adapters.cache_clear()


def test_a_package_brings_a_kind(installed):
    installed("adapter_module:adapter")
    assert registry.adapters()["plugged"](TARGET) == ("made", "http://localhost:1")


@pytest.mark.parametrize("of", ["no_such_module:adapter", "adapter_module:missing"])
def test_an_adapter_that_cannot_be_loaded_is_an_error_for_its_own_workers_alone(installed, of):
    installed(of)
    with pytest.raises(ValueError, match=r"kind 'plugged' .* cannot be loaded"):
        registry.adapters()["plugged"](TARGET)
    registry.adapters()["vllm"](TARGET).close()


def test_no_package_takes_the_name_of_a_built_in_kind(installed):
    installed("adapter_module:adapter", name="vllm")
    assert registry.adapters()["vllm"] is registry.BUILT_IN["vllm"]


def test_packages_are_looked_at_once(installed, monkeypatch):
    looks = []

    def looked(**given):
        looks.append(given)
        return importlib.metadata.entry_points(**given)

    monkeypatch.setattr(registry, "entry_points", looked)
    for _ in range(3):
        assert "vllm" in registry.adapters()
    assert len(looks) == 1
