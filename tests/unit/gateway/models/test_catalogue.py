"""LoRA adapters in the catalogue: those that the settings name, and those that workers report with their parent."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.domain.errors import ModelNotFound
from gateway.models.catalogue import Catalogue
from gateway.settings.models import ModelSettings
from gateway.settings.prices import PriceSettings
from gateway.tokenization.text_encoder import TextEncoder
from gateway.tokenization.worker_tokens import WorkerEncoder

PARENT = ModelSettings(
    name="llama",
    aliases=("meta/llama",),
    tokenizer="worker",
    block_size=32,
    context_length=4096,
    prompt_ids="completions",
    prices=PriceSettings(input=1, output=2),
    fallbacks=("small",),
    splits={"llama": 1, "small": 1},
)


async def no_tokens(*_: object) -> None:
    return None


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as found:
        yield found


def catalogue_of(executor: ThreadPoolExecutor, *models: ModelSettings) -> Catalogue:
    return Catalogue(models, executor, 1, 0, no_tokens)


@pytest.mark.parametrize("parent", ["llama", "meta/llama"])
def test_a_reported_adapter_has_the_tokens_and_prices_of_its_parent(
    executor: ThreadPoolExecutor, parent: str
) -> None:
    catalogue = catalogue_of(executor, PARENT)
    catalogue.add_reported({"sql", "llama"}, {"sql": parent})
    llama, sql = catalogue.find("llama"), catalogue.find("sql")
    assert (sql.name, sql.parent) == ("sql", "llama")
    assert sql.encoder is llama.encoder
    assert isinstance(sql.encoder, WorkerEncoder)
    assert (sql.block_size, sql.context_length, sql.prices) == (32, 4096, llama.prices)
    assert sql.surfaces_sent_as_ids == llama.surfaces_sent_as_ids
    assert (sql.splits, sql.fallbacks) == ((), ())


def test_an_adapter_of_an_unnamed_parent_has_text_alone(executor: ThreadPoolExecutor) -> None:
    catalogue = catalogue_of(executor)
    catalogue.add_reported({"sql", "llama"}, {"sql": "llama"})
    assert isinstance(catalogue.find("sql").encoder, TextEncoder)
    assert catalogue.find("sql").parent == "llama"


def test_an_adapter_with_an_unknown_parent_is_a_model_like_any_other(executor: ThreadPoolExecutor) -> None:
    catalogue = catalogue_of(executor, PARENT)
    catalogue.add_reported({"sql"}, {"sql": "other"})
    assert isinstance(catalogue.find("sql").encoder, TextEncoder)


def test_the_settings_of_an_adapter_win(executor: ThreadPoolExecutor) -> None:
    own = ModelSettings(
        name="sql", block_size=16, aliases=("text-to-sql",), prices=PriceSettings(input=5, output=5)
    )
    catalogue = catalogue_of(executor, PARENT, own)
    catalogue.add_reported({"sql", "llama"}, {"sql": "llama"})
    found = catalogue.find("text-to-sql")
    assert (found.name, found.block_size, found.parent) == ("sql", 16, "")
    assert found.prices is not None
    assert found.prices != catalogue.find("llama").prices


def test_an_adapter_keeps_its_parents_tokens_when_settings_change(executor: ThreadPoolExecutor) -> None:
    catalogue = catalogue_of(executor, PARENT)
    catalogue.add_reported({"sql", "llama"}, {"sql": "llama"})
    encoder = catalogue.find("sql").encoder
    named = ModelSettings(name="sql", tokenizer="worker", block_size=32, context_length=100)
    contents = catalogue.prepare([PARENT, named])
    assert contents.restart_paths == ()
    catalogue.replace_contents(contents)
    assert (catalogue.find("sql").encoder, catalogue.find("sql").context_length) == (encoder, 100)
    catalogue.replace_contents(catalogue.prepare([PARENT]))
    with pytest.raises(ModelNotFound):
        catalogue.find("sql")
    catalogue.add_reported({"sql", "llama"}, {"sql": "llama"})
    assert catalogue.find("sql").encoder is encoder


def test_other_blocks_for_a_reported_adapter_need_a_restart(executor: ThreadPoolExecutor) -> None:
    catalogue = catalogue_of(executor, PARENT)
    catalogue.add_reported({"sql", "llama"}, {"sql": "llama"})
    contents = catalogue.prepare([PARENT, ModelSettings(name="sql", tokenizer="worker", block_size=64)])
    assert contents.restart_paths == ("models.sql.block_size",)
    assert contents.by_name["sql"].block_size == 32
