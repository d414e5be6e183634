"""The KV pool leaves a step the memory that it needs."""

import pytest

from workers.engine.errors import ConfigInvalid
from workers.engine.kv.pool_sizing import CUDA_SHARE, kv_memory


def test_the_memory_of_the_largest_step_is_taken_off() -> None:
    assert kv_memory(10_000_000, 0) == int(10_000_000 * CUDA_SHARE)
    assert kv_memory(10_000_000, 4_000_000) == int(10_000_000 * CUDA_SHARE) - 4_000_000


def test_a_device_on_which_the_largest_step_does_not_fit_is_refused_with_what_to_lower() -> None:
    with pytest.raises(ConfigInvalid, match="lower context_length, chunk_tokens or running_max"):
        kv_memory(10_000_000, 9_500_000)
