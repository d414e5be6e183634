"""The other side: transformers' `generate`, greedy, with its own KV cache, padded where lengths differ."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

logging.set_verbosity_error()


class Generate:
    """One model behind `generate`."""

    def __init__(self, directory: Path, dtype: torch.dtype, device: str) -> None:
        self._device = device
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).to(device).eval()
        # Answers have the length that was asked for.
        self._model.generation_config.eos_token_id = None

    def __call__(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
        """`new_tokens` tokens after each prompt; shorter prompts are padded on the left."""
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
            )
        return [row[longest:].tolist() for row in tokens]
