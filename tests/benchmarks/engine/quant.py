"""Weights in 16, 8 and 4 bits: memory, error, and speed of one model in one run.

    python -m tests.benchmarks.engine.quant [--checkpoint DIR] [--dtype bfloat16] [--hidden 512] [--layers 8]

Speed is the processor time of one thread, so that other programs do not count. The error is that of the logits of
one given text: the root mean square as a share of the logits' spread, the largest difference, and how often the
best token is the same. Random weights lose more than trained ones.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from gateway.bench.machine import machine, versions
from tests.benchmarks.report import new_table
from workers.engine.attention.attention_backend import AttentionSpan
from workers.engine.attention.sdpa_backend import SdpaBackend
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import Quantization
from workers.engine.kv.kv_codec import kv_codec
from workers.engine.kv.kv_store import KVStore
from workers.engine.model.decoder import Decoder
from workers.engine.model.weight_loading import load_decoder
from workers.engine.tiny_checkpoint import build

KINDS: tuple[Quantization, ...] = ("none", "int8", "int4")
BATCHES = (1, 8, 32)
CONTEXT = 128
PROMPT = 256
BLOCK = 16
SECONDS = 0.5


def measure(
    checkpoint: Path, dtype: torch.dtype, kinds: tuple[Quantization, ...] = KINDS
) -> dict[str, dict[str, float]]:
    """Return the figures of each kind of weights, those of `none` first; the others have ratios to it."""
    torch.set_num_threads(1)
    runs: dict[str, dict[str, float]] = {}
    wanted: Tensor | None = None
    for kind in kinds:
        subject = _Subject(checkpoint, dtype, kind)
        scores = subject.scores()
        wanted = scores if wanted is None else wanted
        runs[kind] = {
            "linear_bytes": subject.decoder.linear_bytes,
            "error_ratio": ((scores - wanted).square().mean().sqrt() / wanted.std()).item(),
            "error_max": (scores - wanted).abs().max().item(),
            "top1_agreement": (scores.argmax(-1) == wanted.argmax(-1)).float().mean().item(),
            "prefill_tokens_per_cpu_second": PROMPT / subject.seconds([(0, PROMPT)]),
            **{
                f"decode_{batch}_tokens_per_cpu_second": batch / subject.seconds([(CONTEXT, 1)] * batch)
                for batch in BATCHES
            },
        }
    plain = runs[kinds[0]]
    for kind in kinds[1:]:
        runs[kind] |= {
            f"{name}_ratio_to_{kinds[0]}": value / plain[name]
            for name, value in runs[kind].items()
            if name == "linear_bytes" or name.endswith("second")
        }
    return runs


class _Subject:
    """A decoder over a KV store of its own, without an engine around it."""

    def __init__(self, checkpoint: Path, dtype: torch.dtype, kind: Quantization) -> None:
        spec, device = ModelSpec.from_directory(checkpoint), torch.device("cpu")
        self.decoder: Decoder = load_decoder(
            checkpoint, spec, context_length=1024, dtype=dtype, device=device, quantization=kind
        )
        blocks = 1 + max(BATCHES) * (CONTEXT // BLOCK + 1) + PROMPT // BLOCK
        store = KVStore(
            spec, blocks=blocks, block_size=BLOCK, codec=kv_codec("auto", dtype), dtype=dtype, device=device
        )
        self._attention = SdpaBackend(store, spec)

    def scores(self) -> Tensor:
        """Return the logits of every token of one text."""
        with torch.inference_mode():
            return self.decoder.logits(self._forward([(0, PROMPT)]))

    def seconds(self, spans: list[tuple[int, int]]) -> float:
        """Return the processor time of one step over spans (start, count), with logits of each span's last row."""

        def step() -> None:
            hidden = self._forward(spans)
            self.decoder.logits(hidden[-len(spans) :])

        with torch.inference_mode():
            return _cpu_seconds(step)

    def _forward(self, spans: list[tuple[int, int]]) -> Tensor:
        first, laid, positions = 1, [], []
        for start, count in spans:
            used = -(-(start + count) // BLOCK)
            laid.append(AttentionSpan(start=start, count=count, blocks=list(range(first, first + used))))
            positions += range(start, start + count)
            first += used
        tokens = torch.tensor([4 + position * 7 % 200 for position in positions])
        return self.decoder.forward(tokens, torch.tensor(positions), self._attention.begin(laid))


def _cpu_seconds(step: Callable[[], None]) -> float:
    """Return the least time of the calls that fit into half a second, after one that warms up."""
    step()
    best, until = float("inf"), time.process_time() + SECONDS
    while time.process_time() < until:
        began = time.process_time()
        step()
        best = min(best, time.process_time() - began)
    return best


def table(runs: dict[str, dict[str, float]]) -> Any:
    """Return a row for each kind of weights; `agree`: the best token is the same; `x8`: decode of 8 sequences."""
    drawn = new_table(
        "Weights: memory, error, tokens per second of processor time",
        ("linear layers in",),
        ("MB", "error", "agree", "prefill", *(f"x{batch}" for batch in BATCHES)),
    )
    for kind, figures in runs.items():
        speeds = [
            figures[f"{name}_tokens_per_cpu_second"]
            for name in ("prefill", *(f"decode_{b}" for b in BATCHES))
        ]
        drawn.add_row(
            "16 or 32 bits" if kind == "none" else kind,
            f"{figures['linear_bytes'] / 1e6:,.1f}",
            f"{figures['error_ratio']:.1%}",
            f"{figures['top1_agreement']:.0%}",
            *(f"{speed:,.0f}" for speed in speeds),
        )
    return drawn


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.engine.quant")
    parser.add_argument("--checkpoint", type=Path, help="by default one is built, with random weights")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "float16"))
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = asked.checkpoint or build(
            Path(directory) / "model",
            hidden=asked.hidden,
            layers=asked.layers,
            heads=8,
            kv_heads=2,
            intermediate=3 * asked.hidden,
            # Logits as flat as those of a trained model: the tiny default is far steeper.
            init=1 / asked.hidden**0.5,
        )
        runs = measure(checkpoint, getattr(torch, asked.dtype))
    Console().print(table(runs))
    if asked.json is not None:
        settings = {"dtype": asked.dtype, "hidden": asked.hidden, "layers": asked.layers, "threads": 1}
        result = {
            "machine": machine(),
            "versions": versions("torch"),
            "settings": settings,
            "runs": {kind: {"all": figures} for kind, figures in runs.items()},
        }
        asked.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
