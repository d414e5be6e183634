"""`make bench-engine`: the embedded engine beside transformers' `generate`, on the same weights, in the same run.

    python -m tests.benchmarks.engine [--quick] [--json FILE]

Then the tables of single ideas: quantised weights and KV, speculation, handoff, grammars (see `tables`).
No figure fails the build.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import orjson
import torch
from rich.console import Console

from gateway.bench.machine import machine, versions
from tests.benchmarks.engine import ideas, mixed, speed
from tests.benchmarks.engine.generate import Generate
from tests.benchmarks.engine.models import HUNDRED_MILLION, TINY, Model
from tests.benchmarks.engine.report import ideas_table, mixed_table, speed_table
from tests.benchmarks.engine.tables import print_tables
from workers.engine.config.engine_config import EngineConfig

OURS, THEIRS = "radixgate", "generate"
MODELS = (TINY, HUNDRED_MILLION)
ROUNDS = 5
Runs = dict[str, dict[str, float]]


def measure(model: Model, root: Path, options: argparse.Namespace, console: Console) -> Runs:
    """Measure one model, and return all its figures."""
    console.print(f"{model.name}: building ...", style="dim")
    directory = model.built(root)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = EngineConfig(
        model=directory,
        kv_tokens=16384,
        running_max=max(speed.BATCHES),
        dtype=options.dtype,
        device=device,
        seed=0,
    )
    generate = Generate(directory, getattr(torch, options.dtype), device)
    rounds = 1 if options.quick else ROUNDS
    if options.quick:
        model = replace(model, decode_steps=8, prefill_tokens=256, requests=24)
    ours: dict[str, float] = {"same_tokens": True}
    theirs: dict[str, float] = {}
    bandwidth = speed.read_bandwidth(device)
    ours["read_gigabytes_per_second"] = theirs["read_gigabytes_per_second"] = bandwidth / 1e9
    for batch in speed.BATCHES:
        console.print(f"{model.name}: batch {batch} ...", style="dim")
        _put(ours, theirs, speed.prefill(model, config, generate, batch, rounds))
        _put(ours, theirs, speed.decode(model, config, generate, batch, rounds, bandwidth))
    plain: dict[str, float] = {}
    for name in mixed.SHAPES:
        console.print(f"{model.name}: {name} ...", style="dim")
        arrivals = mixed.requests(
            name, model.shape["vocab"], count=model.requests, seconds=model.arrival_seconds
        )
        ours["same_tokens"] &= mixed.same_tokens(directory, config, generate, arrivals[:4])
        found = mixed.compared(config, generate, arrivals, 1 if options.quick else model.mixed_rounds)
        for side, figures in zip((ours, plain, theirs), found, strict=True):
            side |= {f"{name}_{key}": value for key, value in figures.items()}
    console.print(f"{model.name}: single ideas ...", style="dim")
    ours |= ideas.prefix_hit(model, config, rounds)
    ours |= ideas.chunked_prefill(model, config, rounds)
    ours |= ideas.long_among_short(model, config, rounds)
    ours |= ideas.continuous_batching(model, config)
    return {OURS: ours, f"{OURS} without prefix cache": plain, THEIRS: theirs}


def _put(
    ours: dict[str, float], theirs: dict[str, float], pair: tuple[dict[str, float], dict[str, float]]
) -> None:
    ours |= pair[0]
    theirs |= pair[1]


def main() -> None:
    """Measure, print the tables, and write the JSON file if one was asked for."""
    options = _options()
    torch.set_num_threads(options.threads)
    console = Console(width=None if sys.stdout.isatty() else 132)
    results: dict[str, Runs] = {}
    with tempfile.TemporaryDirectory(prefix="radixgate-bench-engine-") as directory:
        for model in MODELS:
            if options.only in (None, model.name):
                runs = results[model.name] = measure(model, Path(directory), options, console)
                console.print(speed_table(model.name, runs[OURS], runs[THEIRS]))
                console.print(mixed_table(model.name, runs, THEIRS))
                console.print(ideas_table(model.name, runs[OURS]))
                console.print(
                    "greedy tokens of both: " + ("the same" if runs[OURS]["same_tokens"] else "DIFFERENT")
                )
    settings = {
        "quick": options.quick,
        "dtype": options.dtype,
        "threads": options.threads,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "load_average": os.getloadavg()[0],
        "models": {model.name: model.shape for model in MODELS},
    }
    found = versions("torch", "transformers", "tokenizers", "numpy")
    for title, values in (("machine", machine()), ("versions", found), ("settings", settings)):
        console.print(f"{title}: {_listed(values)}", highlight=False)
    if options.json is not None:
        document = {"machine": machine(), "versions": found, "settings": settings, "runs": _document(results)}
        options.json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    for name in print_tables(quick=options.quick):
        console.print(f"the table of {name} failed, see above")


def _document(results: Mapping[str, Runs]) -> dict[str, object]:
    return {
        f"{subject}, {model}": {
            "all": figures,
            "tenants": {},
            f"ratio_to_{THEIRS}": {
                name: value / runs[THEIRS][name] for name, value in figures.items() if runs[THEIRS].get(name)
            },
        }
        for model, runs in results.items()
        for subject, figures in runs.items()
    }


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-engine", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a minute instead of some")
    parser.add_argument("--only", choices=[model.name for model in MODELS], help="this model")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
