"""Frees the syntax trees of all sources after the tests of a file."""

from collections.abc import Iterator

import pytest

from tests.house import sources


@pytest.fixture(scope="module", autouse=True)
def _forget_sources() -> Iterator[None]:
    """The syntax trees are a million objects and more, which no other test needs."""
    yield
    sources.tree.cache_clear()
    sources.prose.cache_clear()
