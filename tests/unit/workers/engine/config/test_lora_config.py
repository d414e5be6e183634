from pathlib import Path

import pytest

from workers.engine.config.lora_config import LoraConfig
from workers.engine.errors import ConfigInvalid


@pytest.mark.parametrize(
    ("names", "bounds", "named"),
    [
        (["sql", "sql"], {}, "two LoRA adapters have the name 'sql'"),
        ([""], {}, "1 to 256 printable characters"),
        (["a\nb"], {}, "1 to 256 printable characters"),
        (["a" * 257], {}, "1 to 256 printable characters"),
        (["a", "b"], {"adapters_max": 1}, "2 LoRA adapters are more than 1"),
        ([], {"rank_max": 0}, "rank_max"),
        ([], {"bytes_max": 0}, "bytes_max"),
    ],
)
def test_settings_that_cannot_work_are_refused(names: list[str], bounds: dict[str, int], named: str) -> None:
    with pytest.raises(ConfigInvalid, match=named):
        LoraConfig(adapters=tuple((name, Path("a")) for name in names), **bounds)
