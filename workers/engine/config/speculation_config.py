"""The settings of speculative decoding. Names are vLLM's where vLLM has the setting."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from workers.engine.errors import ConfigInvalid

Method = Literal["ngram", "draft_model", "early_exit", "medusa"]
DraftSampleMethod = Literal["probabilistic", "greedy"]

NUM_TOKENS_MAX = 32
"""The largest `num_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecConfig:
    """The validated settings of speculative decoding; ConfigInvalid names settings that contradict each other."""

    method: Method
    num_tokens: int = 4
    """The most draft tokens of one sequence in one step."""
    model: Path | None = None
    """draft_model: the checkpoint of the smaller model. medusa: the directory of the heads."""
    prompt_lookup_max: int = 4
    """ngram: the longest suffix of the text, in tokens, that is looked up in the text before it."""
    prompt_lookup_min: int = 2
    """ngram: the shortest suffix of the text, in tokens, that is looked up in the text before it."""
    exit_layer: int | None = None
    """early_exit: how many of the first layers make the drafts."""
    draft_sample_method: DraftSampleMethod = "probabilistic"
    """draft_model, early_exit: whether a sampled request's drafts are sampled too; then more are accepted."""
    adaptive: bool = True
    """Make fewer drafts, or none, where drafts are rejected. False: always `num_tokens`."""
    batch_size_max: int = 32
    """No drafts are made in a step in which more sequences than this decode. On a CPU a draft for each of 32
    sequences makes a step 1.8 times as long, which breaks even where four in five drafts are accepted."""
    verify_cost: float | None = None
    """The time that a second row adds to a step with one, as a share of it; None: measured."""

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ConfigInvalid(
                f"speculative method must be one of {', '.join(get_args(Method))}, not {self.method!r}"
            )
        if self.draft_sample_method not in get_args(DraftSampleMethod):
            raise ConfigInvalid(
                f"draft_sample_method must be one of {', '.join(get_args(DraftSampleMethod))}, "
                f"not {self.draft_sample_method!r}"
            )
        if not 1 <= self.num_tokens <= NUM_TOKENS_MAX:
            raise ConfigInvalid(
                f"the number of speculative tokens must be between 1 and {NUM_TOKENS_MAX}, not {self.num_tokens}"
            )
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ConfigInvalid(
                f"prompt_lookup_min {self.prompt_lookup_min} and prompt_lookup_max {self.prompt_lookup_max} "
                "do not go together"
            )
        if self.batch_size_max < 1:
            raise ConfigInvalid(f"the batch size must be at least 1, not {self.batch_size_max}")
        if self.verify_cost is not None and not 0 <= self.verify_cost < 1:
            raise ConfigInvalid(f"verify_cost must be at least 0 and below 1, not {self.verify_cost}")
        self._check_method_settings()

    def _check_method_settings(self) -> None:
        needs_model = self.method in ("draft_model", "medusa")
        if needs_model and self.model is None:
            raise ConfigInvalid(f"speculative method {self.method} needs a speculative model")
        if not needs_model and self.model is not None:
            raise ConfigInvalid(f"speculative method {self.method} takes no speculative model")
        if (self.method == "early_exit") != (self.exit_layer is not None):
            raise ConfigInvalid("the speculative method early_exit, and no other, needs an exit layer")
        if self.exit_layer is not None and self.exit_layer < 1:
            raise ConfigInvalid(f"the exit layer must be at least 1, not {self.exit_layer}")
