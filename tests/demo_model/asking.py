"""Asks a chat model questions, each in a conversation of its own, with the embedded engine."""

from collections.abc import Sequence
from pathlib import Path

from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams

ANSWER_TOKENS_MAX = 64


def as_prompt(question: str) -> str:
    """Return the question as the chat template of the tiny checkpoints writes it."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def answers(directory: Path, questions: Sequence[str]) -> dict[str, str]:
    """Return the greedy answer of the model in `directory` to each question."""
    engine = Engine.load(
        EngineConfig(model=directory, device="cpu", kv_tokens=32_000, waiting_max=len(questions))
    )
    params = SamplingParams(max_tokens=ANSWER_TOKENS_MAX, temperature=0.0)
    texts = dict.fromkeys(questions, "")
    for question in texts:
        prompt = engine.tokenizer.encode(as_prompt(question), add_special_tokens=False)
        engine.submit(Request(id=question, prompt=prompt, params=params))
    while engine.has_work:
        for output in engine.step():
            texts[output.id] += output.text
    return texts
