"""Catalogue: the models that can be asked for, by name and by alias.

Models stand in the settings, or are found at the workers; those that were found have no tokenizer here.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.domain.errors import ModelNotFound
from gateway.domain.model import Model, PromptEncoder
from gateway.domain.request import Surface
from gateway.quotas.prices import Prices
from gateway.settings.models import ModelSettings
from gateway.settings.prices import PriceSettings
from gateway.settings.types import SettingsProblem
from gateway.tokenization.encoder_processes import EncoderProcesses
from gateway.tokenization.encoder_threads import EncoderThreads
from gateway.tokenization.prompts import TextEncoder, TokenizerEncoder
from gateway.tokenization.worker_tokens import Ask, WorkerEncoder

MODELS_FOUND_MAX = 1000
ENCODING = ("tokenizer", "block_size", "tokenizer_memory_bytes_max")
"""Settings of a model that make its blocks: they hold for as long as the process lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What the settings say of models, read. `encodings`: by what each was read. `late`: paths of what has changed
    and holds only after a restart."""

    by_name: Mapping[str, Model]
    aliases: Mapping[str, str]
    encodings: Mapping[str, ModelSettings]
    late: tuple[str, ...]


HANDED: Mapping[str, frozenset[Surface]] = {
    "off": frozenset(),
    "completions": frozenset({Surface.COMPLETIONS}),
    "all": frozenset({Surface.COMPLETIONS, Surface.CHAT}),
}
"""By `models[].prompt_ids`."""


class Catalogue:
    """`key`: secret seed for the encoders' memory. `ask`: workers, for models whose tokens they tell.
    `processes`: for very long prompts.

    Raises SettingsProblem for a tokenizer that cannot be read.
    """

    def __init__(
        self,
        models: Iterable[ModelSettings],
        executor: Executor,
        key: int,
        created: int,
        ask: Ask | None = None,
        processes: EncoderProcesses | None = None,
    ) -> None:
        self._created = created
        self._key = key
        self._ask = ask
        self._processes = processes
        self._threads = EncoderThreads(executor)
        self._by_name: dict[str, Model] = {}
        self._aliases: dict[str, str] = {}
        # Of every model that the settings ever named: blocks that were made of prompts are known elsewhere, too.
        self._encoders: dict[str, tuple[ModelSettings, PromptEncoder]] = {}
        self.restate(self.read(models))

    def read(self, models: Iterable[ModelSettings]) -> Stated:
        """What `restate` takes; it changes nothing, and may run in a thread. Raises SettingsProblem."""
        by_name: dict[str, Model] = {}
        aliases: dict[str, str] = {}
        encodings: dict[str, ModelSettings] = {}
        late: list[str] = []
        for at, settings in enumerate(models):
            known = self._encoding(settings.name)
            if known is None:
                by, encoder = settings, self._encoder(at, settings)
            else:
                by, encoder = known
                late += (
                    f"models.{settings.name}.{field}"
                    for field in ENCODING
                    if getattr(by, field) != getattr(settings, field)
                )
            encodings[settings.name] = by
            by_name[settings.name] = self._model(
                settings.name,
                by.block_size,
                encoder,
                context_length=settings.context_length,
                prices=prices_of(settings.prices),
                splits=tuple(settings.splits.items()),
                fallbacks=settings.fallbacks,
                hands_tokens=HANDED[settings.prompt_ids],
            )
            aliases.update(dict.fromkeys(settings.aliases, settings.name))
        return Stated(by_name=by_name, aliases=aliases, encodings=encodings, late=tuple(late))

    def restate(self, stated: Stated) -> None:
        """These instead. Whoever has a model keeps it as it was; those found at workers have to be found again."""
        for name, model in stated.by_name.items():
            self._encoders[name] = (stated.encodings[name], model.encoder)
        self._by_name, self._aliases = dict(stated.by_name), dict(stated.aliases)

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
            by, encoder = self._encoders.get(name, (ModelSettings(name=name), TextEncoder()))
            self._by_name[name] = self._model(name, by.block_size, encoder)

    def _encoding(self, name: str) -> "tuple[ModelSettings, PromptEncoder] | None":
        """What makes the blocks of a model that is there, or has been; of one that was found, its text."""
        found = self._by_name.get(name)
        if name in self._encoders or found is None:
            return self._encoders.get(name)
        return ModelSettings(name=name), found.encoder

    def _model(self, name: str, block_size: int, encoder: PromptEncoder, **more: Any) -> Model:
        return Model(
            name=name,
            block_size=block_size,
            encoder=encoder,
            created=self._created,
            **{"context_length": None, **more},
        )

    def _encoder(self, at: int, settings: ModelSettings) -> PromptEncoder:
        """Raises SettingsProblem."""
        memory_bytes_max = settings.tokenizer_memory_bytes_max
        if settings.tokenizer == "worker" and self._ask is not None:
            return WorkerEncoder(settings.name, self._ask, self._key, memory_bytes_max)
        if settings.tokenizer in ("text", "worker"):
            return TextEncoder()
        try:
            return TokenizerEncoder.from_directory(
                Path(settings.tokenizer), self._threads, self._key, memory_bytes_max, self._processes
            )
        except (OSError, ValueError) as err:
            raise SettingsProblem(f"$.models[{at}].tokenizer: {err}") from err


def prices_of(given: PriceSettings | None) -> Prices | None:
    """None where it costs nothing."""
    if given is None:
        return None
    return Prices.of(input=given.input, cached_input=given.cached_input, output=given.output)
