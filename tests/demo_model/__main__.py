"""Trains the model of the demo and writes its checkpoint: `make demo-model`.

    python -m tests.demo_model DIRECTORY

About seven minutes of one CPU core. The same machine and version of torch give the same file; others give one that
differs by rounding. At the end the embedded engine answers every question of the topics, and the share of answers
that are exactly those of the corpus is printed.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from gateway.demo.topics import QUESTIONS, topics
from tests.demo_model.asking import answers
from tests.demo_model.corpus import tokenizer_texts
from tests.demo_model.llama import TrainedLlama
from tests.demo_model.training import train
from workers.engine.tiny_checkpoint import TinyCheckpointSettings, train_tokenizer, write_descriptions

SEED = 1
SHAPE = TinyCheckpointSettings(
    architecture="llama",
    hidden=256,
    layers=4,
    heads=8,
    kv_heads=2,
    intermediate=512,
    vocab=2048,
    context=4096,
    seed=SEED,
    init=0.02,
    window=0,
)
PRINTED_EVERY = 20


def main(arguments: list[str]) -> int:
    """Train the model, write it, let the engine answer with it, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.demo_model")
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args(arguments).directory
    # One thread adds up in one order: the same machine gets the same weights.
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer = train_tokenizer(SHAPE.vocab, tokenizer_texts())
    model = TrainedLlama(SHAPE)
    began = time.process_time()
    for step, loss in train(model, tokenizer, SEED):
        if step % PRINTED_EVERY == 0:
            print(
                f"step {step:>4}  loss {loss:.3f}  {time.process_time() - began:>4.0f} s of CPU", flush=True
            )
    directory.mkdir(parents=True, exist_ok=True)
    write_descriptions(directory, SHAPE, tokenizer, tied_head=True)
    rounded = {name: weight.detach().bfloat16() for name, weight in model.weights.items()}
    save_file(rounded, directory / "model.safetensors", metadata={"format": "pt"})
    size = sum(file.stat().st_size for file in directory.iterdir())
    print(f"{sum(map(torch.numel, rounded.values())):,} weights, {size:,} bytes in {directory}")
    right, asked = _right_answers(directory)
    print(f"{right} of {asked} questions were answered as in the corpus")
    return 0


def _right_answers(directory: Path) -> tuple[int, int]:
    """Return how many questions of each form the engine answers word for word, and how many there are."""
    wanted = {
        form.format(subject): parts[part]
        for subject, parts in topics().items()
        for part, forms in QUESTIONS.items()
        for form in forms
    }
    given = answers(directory, list(wanted))
    for question, answer in given.items():
        if answer != wanted[question]:
            print(f"{question}  ->  {answer}")
    return sum(given[question] == answer for question, answer in wanted.items()), len(wanted)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
