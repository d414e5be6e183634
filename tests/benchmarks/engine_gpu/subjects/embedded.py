"""The embedded engine as a subject."""

from itertools import count
from pathlib import Path
from typing import Any

from tests.benchmarks.engine_gpu.orders import Order, Prompts, answer, read_order
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams


class EmbeddedSubject:
    """Runs all requests of a measurement to their end."""

    def __init__(self, order: Order) -> None:
        batch = max(order.batches)
        settings: dict[str, Any] = {"chunk_tokens": 8192, **order.settings}
        config = EngineConfig(
            model=Path(order.model),
            device=order.device,  # type: ignore[arg-type]
            dtype=order.dtype,  # type: ignore[arg-type]
            running_max=batch,
            waiting_max=batch,
            context_length=order.context,
            prefix_caching=False,
            seed=0,
            **settings,
        )
        self._engine = Engine.load(config)
        self._ids = count()

    def __call__(self, prompts: Prompts, new_tokens: int) -> None:
        """Generate so many tokens after each prompt."""
        params = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
        for prompt in prompts:
            self._engine.submit(Request(id=str(next(self._ids)), prompt=prompt, params=params))
        while self._engine.has_work:
            self._engine.step()


if __name__ == "__main__":
    asked = read_order()
    answer(asked, EmbeddedSubject(asked))
