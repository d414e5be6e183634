"""KV in 16, 8 and 4 bits: memory, error, and how often the same token is chosen, of one model in one run.

    python -m tests.benchmarks.engine.kv_quant [--checkpoint DIR] [--dtype float32] [--json FILE]

The error is that of the logits of one given text, in chunks that read the stored KV: the root mean square as a
share of the logits' spread. Agreement is that of greedy answers to a fixed set of prompts: the share of equal
first tokens, and the average number of tokens before the first different one. A random model is far more
sensitive than a trained one. The checkpoint that is built here has heads of 64, so that a scale serves as many
numbers as usual.
"""

import argparse
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import torch
from rich.console import Console
from torch import Tensor

from gateway.bench.machine import machine, versions
from tests.benchmarks.report import new_table
from workers.engine.attention.attention_backend import AttentionSpan
from workers.engine.attention.sdpa_backend import SdpaBackend
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import EngineConfig, KvDtype
from workers.engine.engine import Engine
from workers.engine.kv.kv_codec import kv_codec
from workers.engine.kv.kv_store import KVStore
from workers.engine.model.weight_loading import load_decoder
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.tiny_checkpoint import build

KINDS: tuple[KvDtype, ...] = ("auto", "int8", "k8v4", "int4")
TEXT, CHUNK, BLOCK = 256, 32, 16
PROMPTS, PROMPT, ANSWER = 24, 96, 32


def measure(checkpoint: Path, dtype: str) -> dict[str, dict[str, float]]:
    """Return the figures of each kind of KV, those of `auto` first."""
    exact_scores: Tensor | None = None
    exact_answers: list[tuple[int, ...]] = []
    runs: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        scores, bytes_per_token, predicted = _scores(checkpoint, dtype, kind)
        answers = _answers(checkpoint, dtype, kind)
        if exact_scores is None:
            exact_scores, exact_answers = scores, answers
        pairs = list(zip(exact_answers, answers, strict=True))
        runs[kind] = {
            "bytes_per_token": bytes_per_token,
            "bytes_by_formula": predicted,
            "error_ratio": ((scores - exact_scores).square().mean().sqrt() / exact_scores.std()).item(),
            "top1_agreement": (scores.argmax(-1) == exact_scores.argmax(-1)).float().mean().item(),
            "first_token_agreement": sum(a[0] == b[0] for a, b in pairs) / len(pairs),
            "tokens_before_another": sum(_common(a, b) for a, b in pairs) / len(pairs),
        }
    return runs


def _scores(checkpoint: Path, dtype: str, kind: KvDtype) -> tuple[Tensor, float, float]:
    """Return the logits [TEXT, vocab] of one text, and the bytes of a token: allocated, and by the formula."""
    cpu, computed = torch.device("cpu"), getattr(torch, dtype)
    spec = ModelSpec.from_directory(checkpoint)
    decoder = load_decoder(checkpoint, spec, context_length=TEXT, dtype=computed, device=cpu)
    codec, blocks = kv_codec(kind, computed), TEXT // BLOCK + 1
    store = KVStore(spec, blocks=blocks, block_size=BLOCK, codec=codec, dtype=computed, device=cpu)
    attention = SdpaBackend(store, spec)
    chance = random.Random(0)
    tokens = torch.tensor([chance.randrange(4, spec.vocab_size) for _ in range(TEXT)])
    rows = []
    with torch.inference_mode():
        for start in range(0, TEXT, CHUNK):
            span = AttentionSpan(start=start, count=CHUNK, blocks=range(1, blocks))
            positions = torch.arange(start, start + CHUNK)
            rows.append(
                decoder.logits(decoder.forward(tokens[positions], positions, attention.begin([span])))
            )
    return torch.cat(rows), store.num_bytes / (blocks * BLOCK), codec.bytes_per_token(spec)


def _answers(checkpoint: Path, dtype: Any, kind: KvDtype) -> list[tuple[int, ...]]:
    config = EngineConfig(model=checkpoint, dtype=dtype, kv_tokens=8192, device="cpu", seed=0)
    engine = Engine.load(replace(config, kv_dtype=kind))
    chance = random.Random(1)
    params = SamplingParams(max_tokens=ANSWER, temperature=0.0, ignore_eos=True)
    answers: dict[str, list[int]] = {}
    for number in range(PROMPTS):
        prompt = [chance.randrange(4, engine.info.vocab_size) for _ in range(PROMPT)]
        engine.submit(Request(id=str(number), prompt=prompt, params=params))
        answers[str(number)] = []
    while engine.has_work:
        for output in engine.step():
            answers[output.id] += output.tokens
    return [tuple(tokens) for tokens in answers.values()]


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.engine.kv_quant")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console = Console()
    with tempfile.TemporaryDirectory() as place:
        shape: dict[str, Any] = {"hidden": 512, "layers": 4, "heads": 8, "kv_heads": 2, "intermediate": 1024}
        checkpoint = options.checkpoint or build(Path(place) / "model", **shape, vocab=1024, init=0.05)
        runs = measure(checkpoint, options.dtype)
    table = new_table(f"KV cache of a model in {options.dtype}", ("kept as",), tuple(runs["auto"]))
    for kind, figures in runs.items():
        table.add_row(kind, *(f"{value:.4g}" for value in figures.values()))
    console.print(table)
    if options.json:
        found = {"machine": machine(), "versions": versions(), "runs": runs}
        options.json.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
