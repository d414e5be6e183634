"""The catalogue of models that clients can request, by name and by alias.

Models come from the settings, or are reported by workers. A reported LoRA adapter has the tokenizer, the blocks and
the prices of the model that it changes; any other reported model has no tokenizer in the gateway and is free.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.domain.errors import ModelNotFound
from gateway.domain.model import Model, PromptEncoder
from gateway.domain.request import Surface
from gateway.domain.tenant import Tenant
from gateway.models.aliases import ModelAliases, model_aliases
from gateway.models.model_prices import prices_from
from gateway.settings.models import ModelSettings
from gateway.settings.types import SettingsProblem
from gateway.tokenization.encoder_processes import EncoderProcesses
from gateway.tokenization.encoder_threads import EncoderThreads
from gateway.tokenization.text_encoder import TextEncoder
from gateway.tokenization.tokenizer_encoder import TokenizerEncoder
from gateway.tokenization.worker_tokens import Tokenize, WorkerEncoder

MODELS_FOUND_MAX = 1000
ENCODING_SETTINGS = ("tokenizer", "block_size", "tokenizer_memory_bytes_max")
"""Settings that determine the blocks of a model's prompts; their first values stay in force until a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueContents:
    """The models and aliases of one version of the settings."""

    by_name: Mapping[str, Model]
    aliases: ModelAliases
    encodings: Mapping[str, ModelSettings]
    """By model name, the settings from which its encoder was made."""
    restart_paths: tuple[str, ...]
    """Paths of changed settings that take effect only after a restart."""


SURFACES_SENT_AS_IDS: Mapping[str, frozenset[Surface]] = {
    "off": frozenset(),
    "completions": frozenset({Surface.COMPLETIONS}),
    "all": frozenset({Surface.COMPLETIONS, Surface.CHAT}),
}
"""By `models[].prompt_ids`: the surfaces on which prompts go to workers as token ids."""


class Catalogue:
    """The models that clients can request. The constructor raises SettingsProblem for an unreadable tokenizer.

    Args:
        models: The models of the settings.
        executor: Runs the threads that encode long prompts.
        key: A secret seed for the hashes under which encoders cache prompts.
        created: Seconds since 1970, as clients see them for every model.
        tokenize: Tokenizes with a worker, for models with `tokenizer: worker`.
        processes: Encode very long prompts.
    """

    def __init__(
        self,
        models: Iterable[ModelSettings],
        executor: Executor,
        key: int,
        created: int,
        tokenize: Tokenize | None = None,
        processes: EncoderProcesses | None = None,
    ) -> None:
        self._created = created
        self._key = key
        self._tokenize = tokenize
        self._processes = processes
        self._threads = EncoderThreads(executor)
        self._by_name: dict[str, Model] = {}
        self._aliases = ModelAliases()
        self.configured: tuple[str, ...] = ()
        """The names of the models in the settings, whether or not they have workers."""
        # One for every model that the settings ever named, since other gateways and workers use its block size.
        self._encoders: dict[str, tuple[ModelSettings, PromptEncoder]] = {}
        self.replace_contents(self.prepare(models))

    def prepare(self, models: Iterable[ModelSettings]) -> CatalogueContents:
        """Return the contents for `replace_contents` without changing anything. Raises SettingsProblem.

        It may run in a thread.
        """
        models = tuple(models)
        by_name: dict[str, Model] = {}
        encodings: dict[str, ModelSettings] = {}
        restart_paths: list[str] = []
        for at, settings in enumerate(models):
            known = self._encoding_of(settings.name)
            if known is None:
                source, encoder = settings, self._encoder(at, settings)
            else:
                source, encoder = known
                restart_paths += (
                    f"models.{settings.name}.{field}"
                    for field in ENCODING_SETTINGS
                    if getattr(source, field) != getattr(settings, field)
                )
            encodings[settings.name] = source
            by_name[settings.name] = self._model(
                settings.name,
                source.block_size,
                encoder,
                context_length=settings.context_length,
                prices=prices_from(settings.prices),
                splits=tuple(settings.splits.items()),
                fallbacks=settings.fallbacks,
                first_worker_seconds_max=settings.first_worker_seconds_max,
                surfaces_sent_as_ids=SURFACES_SENT_AS_IDS[settings.prompt_ids],
            )
        return CatalogueContents(
            by_name=by_name,
            aliases=model_aliases(models),
            encodings=encodings,
            restart_paths=tuple(restart_paths),
        )

    def replace_contents(self, contents: CatalogueContents) -> None:
        """Replace all models and aliases; models that workers reported have to be added again.

        A running request keeps its model.
        """
        for name, model in contents.by_name.items():
            self._encoders[name] = (contents.encodings[name], model.encoder)
        self._by_name, self._aliases = dict(contents.by_name), contents.aliases
        self.configured = tuple(contents.by_name)

    def find(self, name: str, tenant: str = "") -> Model:
        """Return the model with this name or alias. Raises ModelNotFound.

        `tenant` is the id of a tenant with aliases of its own, which also count.
        """
        if tenant in self._aliases.by_tenant:
            own = self._by_name.get(self._aliases.by_tenant[tenant].model(name) or "")
            if own is not None:
                return own
        model = self._by_name.get(name)
        if model is None:
            model = self._by_name.get(self._aliases.shared.model(name) or "")
        if model is None:
            raise ModelNotFound(name)
        return model

    def by_name_or_alias(self) -> Mapping[str, Model]:
        """Return the models by each of their names and exact aliases."""
        exact = self._aliases.shared.exact
        return {**self._by_name, **{alias: self._by_name[name] for alias, name in exact.items()}}

    def discounts(self) -> dict[str, float]:
        """Return, by model, how much less a cached prompt token costs, in millionths of the currency."""
        return {
            name: model.prices.saving_per_cached_token
            for name, model in self._by_name.items()
            if model.prices is not None and model.prices.saving_per_cached_token
        }

    def names_for(self, tenant: Tenant) -> list[str]:
        """Return the names and aliases that the tenant may request, sorted."""
        return sorted(name for name, model in self.by_name_or_alias().items() if tenant.allows(model.name))

    def add_reported(self, names: Iterable[str], parents: Mapping[str, str]) -> None:
        """Add the models that a worker reports, unless they are known.

        `parents`: the models that LoRA adapters change, by the adapter's name.
        """
        # Adapters come last, because they take over settings of their parents.
        for name in sorted(names, key=parents.__contains__):
            if (
                name in self._by_name
                or name in self._aliases.shared.exact
                or len(self._by_name) >= MODELS_FOUND_MAX
            ):
                continue
            parent = self._parent(parents.get(name))
            if parent is not None and name not in self._encoders:
                self._by_name[name] = replace(
                    parent,
                    name=name,
                    parent=parent.name,
                    splits=(),
                    fallbacks=(),
                    first_worker_seconds_max=0.0,
                )
                continue
            source, encoder = self._encoders.get(name, (ModelSettings(name=name), TextEncoder()))
            self._by_name[name] = self._model(name, source.block_size, encoder)

    def _parent(self, name: str | None) -> Model | None:
        """Return the model that an adapter changes; None if it is unknown or an adapter itself."""
        if name is None:
            return None
        found = self._by_name.get(name) or self._by_name.get(self._aliases.shared.exact.get(name, ""))
        return found if found is not None and not found.parent else None

    def _encoding_of(self, name: str) -> "tuple[ModelSettings, PromptEncoder] | None":
        """Return the settings and the encoder that make a model's blocks; None for a model that never existed.

        A LoRA adapter has those of its parent.
        """
        found = self._by_name.get(name)
        if name in self._encoders or found is None:
            return self._encoders.get(name)
        if found.parent in self._encoders:
            return self._encoders[found.parent]
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
        """Make the encoder of model number `at` of the settings. Raises SettingsProblem."""
        memory_bytes_max = settings.tokenizer_memory_bytes_max
        if settings.tokenizer == "worker" and self._tokenize is not None:
            return WorkerEncoder(settings.name, self._tokenize, self._key, memory_bytes_max)
        if settings.tokenizer in ("text", "worker"):
            return TextEncoder()
        try:
            return TokenizerEncoder.from_directory(
                Path(settings.tokenizer), self._threads, self._key, memory_bytes_max, self._processes
            )
        except (OSError, ValueError) as err:
            raise SettingsProblem(f"$.models[{at}].tokenizer: {err}") from err
