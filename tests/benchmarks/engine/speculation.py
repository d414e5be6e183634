"""Tokens per second with and without speculative decoding, by method, beside what theory predicts.

    python -m tests.benchmarks.engine.speculation [--quick] [--adaptive] [--batches 1 4 16] [--methods ngram]

The model is built so that drafts are accepted: its later layers change little, so that its first layers, as a
draft model or as an early exit, mostly give the same tokens; Medusa heads are fitted to the very texts; and for
n-grams the prompt holds the answer already. So this measures what speculation can give where acceptance is high,
not the quality of drafters. The heads know four texts: in larger batches they also draft for unknown ones.
"""

import argparse
import json
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from safetensors.torch import load_file, save_file

from tests.benchmarks.engine.models import HUNDRED_MILLION
from tests.benchmarks.engine.speed import prompts, submit
from tests.benchmarks.engine.stopwatch import Times
from tests.benchmarks.report import new_table, number
from workers.engine.config.engine_config import EngineConfig
from workers.engine.config.speculation_config import Method, SpecConfig
from workers.engine.engine import Engine
from workers.engine.fit_medusa import fit_heads, save_heads
from workers.engine.scheduler.counters import SpecCounters
from workers.engine.scheduler.draft_length import expected_tokens

DRAFT_LAYERS = 2
DRAFTS = 4
FAINT = 0.05
"""The factor by which the later layers are weakened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One method of speculation on one model."""

    name: str
    model: Path
    speculation: SpecConfig
    repeats: bool = False
    """Whether the prompt holds the answer already."""


def subjects(root: Path, tokens: int, *, adaptive: bool) -> list[Subject]:
    """Write the models and drafters to `root`, and return the methods to measure."""
    base = HUNDRED_MILLION.built(root)
    target = _changed(base, root / "target", later=FAINT)
    draft = _first_layers(target, root / "draft")
    # Without attention a token depends on the one before it only, so that a prompt can be made to repeat.
    deaf = _changed(base, root / "deaf", attention=0.0)
    heads = _heads(target, root / "heads", tokens)
    settings: dict[str, Any] = {"num_tokens": DRAFTS, "adaptive": adaptive, "batch_size_max": 64}
    return [
        Subject(name="ngram", model=deaf, speculation=SpecConfig(method="ngram", **settings), repeats=True),
        Subject(
            name="draft_model",
            model=target,
            speculation=SpecConfig(method="draft_model", model=draft, **settings),
        ),
        Subject(
            name="early_exit",
            model=target,
            speculation=SpecConfig(method="early_exit", exit_layer=DRAFT_LAYERS, **settings),
        ),
        Subject(
            name="medusa", model=target, speculation=SpecConfig(method="medusa", model=heads, **settings)
        ),
    ]


def decode(
    config: EngineConfig, asked: list[list[int]], tokens: int, rounds: int
) -> tuple[Times, SpecCounters, list[tuple[int, ...]]]:
    """Return the time from the end of the prompts to the last token; every method must give the same texts."""
    engine = Engine.load(config)
    times, texts = Times(), {}
    for turn in range(rounds + 1):
        submit(engine, asked, max_tokens=tokens)
        texts = {str(place): () for place in range(len(asked))}
        outputs = engine.step()
        while any(not sequence.is_decoding for sequence in engine.scheduler.running):
            outputs += engine.step()
        with times.round():
            while engine.has_work:
                outputs += engine.step()
        for output in outputs:
            texts[output.id] += output.tokens
        engine.flush_cache()
        if not turn:
            times = Times()
    return times, engine.speculation, list(texts.values())


def acceptance(counters: SpecCounters) -> float:
    """Return the share of accepted drafts among those whose predecessors were accepted."""
    tried = counters.num_drafts + sum(counters.num_accepted_tokens_per_pos[:-1])
    return counters.num_accepted_tokens / tried if tried else 0.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="speculation", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer tokens and one round")
    parser.add_argument("--rounds", type=int, help="by default 3, and 1 with --quick")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--adaptive", action="store_true", help="guess as far as it pays, not always as far")
    parser.add_argument("--methods", nargs="+", default=get_args(Method), choices=get_args(Method))
    options = parser.parse_args()
    tokens, rounds = (33, 1) if options.quick else (97, 3)
    rounds = options.rounds or rounds
    console = Console(width=120)
    drawn = new_table(
        f"speculation, {DRAFTS} drafts, {HUNDRED_MILLION.name}",
        ("method",),
        (
            "batch",
            "plain tok/s",
            "spec tok/s",
            "ratio",
            "ratio by CPU",
            "accepted",
            "tokens/verify",
            "by theory",
        ),
    )
    with tempfile.TemporaryDirectory(prefix="radixgate-bench-speculation-") as directory:
        for subject in subjects(Path(directory), tokens, adaptive=options.adaptive):
            for batch in options.batches if subject.name in options.methods else ():
                row = _measured(subject, batch, tokens, rounds)
                console.print(
                    f"{subject.name}, batch {batch}: {', '.join(row)}", style="dim", highlight=False
                )
                drawn.add_row(subject.name, str(batch), *row)
    console.print(drawn)


def _measured(subject: Subject, batch: int, tokens: int, rounds: int) -> list[str]:
    config = EngineConfig(
        model=subject.model, kv_tokens=16_384, dtype="float32", seed=0, running_max=batch, chunk_tokens=4096
    )
    asked = prompts(batch, 24, HUNDRED_MILLION.shape["vocab"])
    if subject.repeats:
        _, _, said = decode(config, asked, tokens, rounds=0)
        asked = [[prompt[-1], *text, prompt[-1]] for prompt, text in zip(asked, said, strict=True)]
    plain, _, said = decode(config, asked, tokens, rounds)
    spec, counters, same = decode(replace(config, speculation=subject.speculation), asked, tokens, rounds)
    if said != same:
        raise SystemExit(f"{subject.name} changed what the model says")
    work = batch * (tokens - 1)
    rate, adaptive = acceptance(counters), subject.speculation.adaptive
    return [
        number(work / plain.wall_seconds, 1),
        number(work / spec.wall_seconds, 1),
        f"{plain.wall_seconds / spec.wall_seconds:.2f} x",
        f"{plain.cpu_seconds / spec.cpu_seconds:.2f} x",
        f"{counters.acceptance_rate if adaptive else rate:.2f}",
        f"{counters.accepted_length:.2f}",
        "" if adaptive else f"{expected_tokens(rate, DRAFTS):.2f}",
    ]


def _changed(base: Path, directory: Path, *, later: float = 1.0, attention: float = 1.0) -> Path:
    """Write a copy of the model whose later layers or whole attention are weakened by a factor."""
    shutil.copytree(base, directory)
    weights = load_file(directory / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith("o_proj.weight"):
            weight *= attention
        if name.endswith(("o_proj.weight", "down_proj.weight")) and int(name.split(".")[2]) >= DRAFT_LAYERS:
            weight *= later
        if name.endswith("embed_tokens.weight"):
            # Strong enough beside the layers that the best token is clear.
            weight *= 10
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _first_layers(model: Path, directory: Path) -> Path:
    """Write a checkpoint of the first layers alone."""
    shutil.copytree(model, directory)
    weights = load_file(directory / "model.safetensors")
    kept = {
        name: weight
        for name, weight in weights.items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < DRAFT_LAYERS
    }
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = DRAFT_LAYERS
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def _heads(model: Path, directory: Path, tokens: int) -> Path:
    """Write Medusa heads that know the model's answers to the first prompts of this benchmark."""
    config = EngineConfig(model=model, kv_tokens=16_384, dtype="float32", seed=0)
    asked = prompts(4, 24, HUNDRED_MILLION.shape["vocab"])
    save_heads(fit_heads(config, asked, heads=DRAFTS, tokens=tokens + DRAFTS, ridge=1e-6), directory)
    return directory


if __name__ == "__main__":
    main()
