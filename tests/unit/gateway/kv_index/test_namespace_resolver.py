"""The namespace of a KV event: that of the adapter that it names, or of the worker's model without an adapter."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.kv_index.namespace_resolver import GroupsBySalt, NamespaceResolver
from gateway.models.catalogue import Catalogue
from gateway.settings.models import ModelSettings
from gateway.tokenization.prompt_hasher import PromptHasher
from radix_cache.follower import UnusablePages


async def no_tokens(*_: object) -> None:
    return None


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as found:
        yield found


def resolver_of(
    executor: ThreadPoolExecutor, models: set[str], adapters: dict[str, str]
) -> NamespaceResolver:
    catalogue = Catalogue(
        [ModelSettings(name="llama", tokenizer="worker", block_size=16)], executor, 1, 0, no_tokens
    )
    catalogue.add_reported(models, adapters)
    groups = GroupsBySalt(list, str)
    return NamespaceResolver(lambda _: models, lambda _: adapters, catalogue, PromptHasher(b"secret"), groups)


@pytest.mark.parametrize(("adapter", "model"), [("", "llama"), ("sql", "sql"), ("chat", "chat")])
def test_each_adapter_and_the_model_have_a_namespace_of_their_own(
    executor: ThreadPoolExecutor, adapter: str, model: str
) -> None:
    parents = {"sql": "llama", "chat": "llama"}
    found = resolver_of(executor, {"llama", "sql", "chat"}, parents).resolve("w", "", adapter, 16)
    assert found is not None
    assert found.namespace.model == model


def test_blocks_of_an_adapter_that_is_not_served_are_not_those_of_the_model(
    executor: ThreadPoolExecutor,
) -> None:
    assert resolver_of(executor, {"llama"}, {"sql": "llama"}).resolve("w", "", "sql", 16) is None


def test_two_models_without_a_parent_share_a_namespace(executor: ThreadPoolExecutor) -> None:
    with pytest.raises(UnusablePages):
        resolver_of(executor, {"llama", "sql"}, {}).resolve("w", "", "", 16)
