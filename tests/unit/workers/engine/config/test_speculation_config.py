"""Settings of speculation that do not go together are refused."""

from pathlib import Path
from typing import Any

import pytest

from workers.engine.config.speculation_config import SpecConfig
from workers.engine.errors import ConfigInvalid


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "magic"}, "method must be one of ngram, draft_model, early_exit, medusa"),
        ({"method": "ngram", "num_tokens": 0}, "between 1 and 32, not 0"),
        ({"method": "ngram", "num_tokens": 33}, "between 1 and 32, not 33"),
        ({"method": "ngram", "prompt_lookup_min": 5}, "prompt_lookup_min 5 and prompt_lookup_max 4"),
        ({"method": "ngram", "prompt_lookup_min": 0}, "prompt_lookup_min 0"),
        ({"method": "ngram", "model": Path("x")}, "ngram takes no speculative model"),
        ({"method": "ngram", "exit_layer": 2}, "early_exit, and no other"),
        ({"method": "early_exit"}, "early_exit, and no other"),
        ({"method": "early_exit", "exit_layer": 0}, "at least 1, not 0"),
        ({"method": "draft_model"}, "draft_model needs a speculative model"),
        ({"method": "medusa"}, "medusa needs a speculative model"),
        ({"method": "ngram", "batch_size_max": 0}, "batch size must be at least 1"),
        ({"method": "ngram", "verify_cost": -0.1}, "verify_cost must be at least 0 and below 1"),
        ({"method": "ngram", "verify_cost": 1.0}, "verify_cost must be at least 0 and below 1"),
        ({"method": "ngram", "verify_cost": float("nan")}, "verify_cost must be at least 0"),
        ({"method": "ngram", "draft_sample_method": "best"}, "must be one of probabilistic, greedy"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigInvalid, match=message):
        SpecConfig(**given)
