"""Catalogue: the models that can be asked for, by name and by alias.

Models stand in the settings, or are found at the workers; those that were found have no tokenizer here.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path

from gateway.dispatch.encoder_threads import EncoderThreads
from gateway.dispatch.prompts import TextEncoder, TokenizerEncoder
from gateway.dispatch.worker_tokens import Ask, WorkerEncoder
from gateway.errors import ModelNotFound
from gateway.model import Model, PromptEncoder
from gateway.quotas.prices import Prices
from gateway.request import Surface
from gateway.settings.models import Model as ModelSettings
from gateway.settings.types import SettingsProblem

MODELS_FOUND_MAX = 1000

HANDED: Mapping[str, frozenset[Surface]] = {
    "off": frozenset(),
    "completions": frozenset({Surface.COMPLETIONS}),
    "all": frozenset({Surface.COMPLETIONS, Surface.CHAT}),
}
"""By `models[].prompt_ids`."""


class Catalogue:
    """`key`: secret seed for the encoders' memory. `ask`: workers, for models whose tokens they tell.

    Raises SettingsProblem for a tokenizer that cannot be read.
    """

    def __init__(
        self,
        models: Iterable[ModelSettings],
        executor: Executor,
        key: int,
        created: int,
        ask: Ask | None = None,
    ) -> None:
        self._created = created
        self._by_name: dict[str, Model] = {}
        self._aliases: dict[str, str] = {}
        threads = EncoderThreads(executor)
        for at, settings in enumerate(models):
            try:
                encoder = _encoder(settings, threads, key, ask)
            except (OSError, ValueError) as err:
                raise SettingsProblem(f"$.models[{at}].tokenizer: {err}") from err
            self._by_name[settings.name] = Model(
                name=settings.name,
                block_size=settings.block_size,
                encoder=encoder,
                context_length=settings.context_length,
                created=created,
                prices=_prices(settings),
                splits=tuple(settings.splits.items()),
                fallbacks=settings.fallbacks,
                hands_tokens=HANDED[settings.prompt_ids],
            )
            self._aliases.update(dict.fromkeys(settings.aliases, settings.name))

    def find(self, name: str) -> Model:
        """The model of that name or alias. Raises ModelNotFound."""
        model = self._by_name.get(self._aliases.get(name, name))
        if model is None:
            raise ModelNotFound(name)
        return model

    def names(self) -> Mapping[str, Model]:
        """All names and aliases."""
        return {**self._by_name, **{alias: self._by_name[name] for alias, name in self._aliases.items()}}

    def found(self, names: Iterable[str]) -> None:
        """A worker reports these models; new ones are added as they are."""
        for name in names:
            if name in self._by_name or name in self._aliases or len(self._by_name) >= MODELS_FOUND_MAX:
                continue
            self._by_name[name] = Model(
                name=name,
                block_size=ModelSettings(name=name).block_size,
                encoder=TextEncoder(),
                context_length=None,
                created=self._created,
            )


def _prices(settings: ModelSettings) -> Prices | None:
    given = settings.prices
    if given is None:
        return None
    return Prices.of(input=given.input, cached_input=given.cached_input, output=given.output)


def _encoder(settings: ModelSettings, threads: EncoderThreads, key: int, ask: Ask | None) -> PromptEncoder:
    if settings.tokenizer == "worker" and ask is not None:
        return WorkerEncoder(settings.name, ask, key, settings.tokenizer_memory_bytes_max)
    if settings.tokenizer in ("text", "worker"):
        return TextEncoder()
    return TokenizerEncoder.from_directory(
        Path(settings.tokenizer), threads, key, settings.tokenizer_memory_bytes_max
    )
