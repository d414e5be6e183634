"""The baseline of the engine: transformers' `generate`, greedy, with its own KV cache, padded to equal lengths."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

logging.set_verbosity_error()


class Generate:
    """One model behind `generate`."""

    def __init__(self, directory: Path, dtype: torch.dtype, device: str) -> None:
        self._device = device
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).to(device).eval()
        # Answers have exactly the requested length.
        self._model.generation_config.eos_token_id = None

    def __call__(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, streamer: "StepTimes | None" = None
    ) -> list[list[int]]:
        """Return `new_tokens` tokens after each prompt; shorter prompts are padded on the left."""
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        with torch.inference_mode():
            tokens = self._model.generate(
                input_ids=ids.to(self._device),
                attention_mask=mask.to(self._device),
                max_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
                streamer=streamer,
            )
        return [row[longest:].tolist() for row in tokens]


class StepTimes(BaseStreamer):
    """The times at which `generate` has each token: the first call brings the prompt, the next the first token."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, float]] = []

    def put(self, _value: object) -> None:
        """Note the time; `generate` calls this for each token."""
        self._marks.append((time.perf_counter(), time.process_time()))

    def end(self) -> None:
        """Do nothing; `generate` calls this at the end."""

    @property
    def decode(self) -> tuple[float, float]:
        """Return the seconds from the first token to the last, by the wall clock and of processor time."""
        (wall, cpu), (wall_end, cpu_end) = self._marks[1], self._marks[-1]
        return wall_end - wall, cpu_end - cpu
