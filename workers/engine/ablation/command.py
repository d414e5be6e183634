"""The command line of the ladder; it imports only what the engine imports, and matplotlib to draw."""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import torch

from workers.engine.ablation.measurement import LadderResult, measure_engine
from workers.engine.ablation.report import PlotImpossible, heading, legend, line, plot, values
from workers.engine.ablation.rungs import CHANGES, LadderRung, rungs
from workers.engine.ablation.traffic import Arrival, TrafficShape, traffic
from workers.engine.config.engine_config import Device, Dtype, EngineConfig
from workers.engine.engine import Engine
from workers.engine.errors import EngineError
from workers.engine.tiny_checkpoint import build

QUICK = TrafficShape(requests=16, seconds=0.5, prompt_median=32, output_median=12, shared_tokens=64)
SMALL_MODEL: dict[str, Any] = {
    "hidden": 256,
    "layers": 4,
    "heads": 8,
    "kv_heads": 2,
    "intermediate": 704,
    "vocab": 2048,
    # A model with such weights soon repeats itself, as text and code do, so that drafts can be accepted.
    "init": 0.05,
}
SECONDS_MAX = 3600
"""Longest time of arrivals."""
_LONGEST_REQUESTS_IN_POOL = 4
"""How many of the longest requests the KV pool holds by default: memory is short enough to matter."""


def main(arguments: list[str] | None = None, prog: str = "python -m workers.engine.ablation") -> int:
    """Run the ladder, print its table, and return the exit code."""
    options = _parser(prog).parse_args(arguments)
    shape = QUICK if options.quick else TrafficShape(requests=options.requests, seconds=options.seconds)
    torch.set_num_threads(options.threads)
    try:
        with _checkpoint(options.model) as model:
            return _run(options, model, shape)
    except (EngineError, PlotImpossible, OSError) as err:
        print(f"{prog}: {err}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace, model: Path, shape: TrafficShape) -> int:
    vocab = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    arrivals = traffic(shape, vocab=vocab, seed=options.seed)
    base = _base(options, model, arrivals)
    setup = {"machine": _machine(base), "versions": _versions(), "traffic": _described(arrivals)}
    for title, entries in setup.items():
        print(f"{title}: {', '.join(f'{name} {value}' for name, value in entries.items())}")
    print(
        f"engine: {base.kv_tokens} KV tokens, {base.running_max} sequences, steps of {base.chunk_tokens} tokens\n"
    )
    runs: dict[str, dict[str, Any]] = {}
    answers: dict[str, tuple[tuple[int, ...], ...]] = {}
    # The first steps of a process are slower, so a small run comes before the measured ones.
    measure_engine(Engine.load(base), [Arrival(at_seconds=0.0, prompt=(16,) * 64, max_tokens=8)] * 2)
    chosen = [rung for rung in rungs(base) if not options.only or rung.name in options.only]
    width = max(len(rung.name) for rung in chosen)
    print(heading(width), flush=True)
    for rung in chosen:
        result_of_rung, bytes_per_token = _measured(rung, arrivals)
        runs[rung.name] = values(result_of_rung, bytes_per_token)
        answers[rung.name] = result_of_rung.tokens
        # The lowest rungs take minutes, so each line is printed as soon as it is known.
        print(line(rung.name, runs[rung.name], width), flush=True)
    print(f"\n{legend()}")
    equal = len(set(answers.values())) == 1
    print(f"\nanswers: {'the same tokens on every rung' if equal else 'NOT the same on every rung'}")
    if options.json:
        result = {
            "machine": setup["machine"],
            "versions": setup["versions"],
            "settings": _settings(base, shape) | {"same_tokens": equal},
            "runs": {name: {"all": run, "tenants": {}} for name, run in runs.items()},
        }
        options.json.write_text(json.dumps(result, indent=2, default=str) + "\n", encoding="utf-8")
    if options.plot:
        plot(runs, options.plot)
    # In half precision another order of the same sum may lead to another token; that is no failure.
    return 0 if equal or base.dtype != "float32" else 1


def _measured(rung: LadderRung, arrivals: Sequence[Arrival]) -> tuple[LadderResult, int]:
    engine = Engine.load(rung.config)
    return measure_engine(engine, arrivals), engine.info.kv_bytes_per_token


def _base(options: argparse.Namespace, model: Path, arrivals: Sequence[Arrival]) -> EngineConfig:
    longest = max(arrival.tokens for arrival in arrivals)
    return EngineConfig(
        model=model,
        kv_tokens=options.kv_tokens or _LONGEST_REQUESTS_IN_POOL * (longest + 16),
        running_max=options.running_max,
        waiting_max=len(arrivals),
        chunk_tokens=options.chunk_tokens,
        dtype=options.dtype,
        device=options.device,
        seed=options.seed,
    )


@contextmanager
def _checkpoint(given: Path | None) -> Iterator[Path]:
    """Yield the given checkpoint, or a temporary small one with random weights."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="radixgate-ladder-") as directory:
        yield build(Path(directory) / "small", **SMALL_MODEL)


def _machine(base: EngineConfig) -> dict[str, Any]:
    cuda = torch.cuda.is_available() and base.device != "cpu"
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if cuda else "none",
        "load_average": round(os.getloadavg()[0], 1),
    }


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__}


def _described(arrivals: Sequence[Arrival]) -> dict[str, str]:
    prompts, outputs = ([len(a.prompt) for a in arrivals], [a.max_tokens for a in arrivals])
    return {
        "requests": f"{len(arrivals)} over {arrivals[-1].at_seconds:.1f} s",
        "prompts": f"{min(prompts)} to {max(prompts)} tokens ({sum(prompts)} in all)",
        "outputs": f"{min(outputs)} to {max(outputs)} tokens ({sum(outputs)} in all)",
    }


def _settings(base: EngineConfig, shape: TrafficShape) -> dict[str, Any]:
    chosen = ("kv_tokens", "running_max", "chunk_tokens", "dtype", "device", "seed")
    return {name: getattr(base, name) for name in chosen} | {
        f"traffic_{name}": value for name, value in asdict(shape).items()
    }


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _seconds(text: str) -> float:
    if not 0 <= (seconds := float(text)) <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"must be between 0 and {SECONDS_MAX}")
    return seconds


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog, description="Runs the same requests on every rung from a naive engine to a modern one."
    )
    parser.add_argument(
        "--model", type=Path, help="checkpoint directory; by default a small random one is made"
    )
    parser.add_argument("--requests", type=_count, default=32, help="number of requests; default %(default)s")
    parser.add_argument(
        "--seconds", type=_seconds, default=2.0, help="time over which requests arrive; default %(default)s"
    )
    parser.add_argument(
        "--running-max",
        type=_count,
        default=16,
        help="sequences computed at the same time; default %(default)s",
    )
    parser.add_argument(
        "--chunk-tokens", type=_count, default=128, help="token budget of a step; default %(default)s"
    )
    parser.add_argument(
        "--kv-tokens",
        type=_count,
        help="tokens that the KV pool holds; by default four of the longest requests",
    )
    parser.add_argument("--dtype", choices=get_args(Dtype), default="float32", help="data type of the model")
    parser.add_argument("--device", choices=get_args(Device), default="auto", help="device that computes")
    parser.add_argument(
        "--threads", type=_count, default=torch.get_num_threads(), help="CPU threads of torch"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the traffic and of the engine")
    parser.add_argument("--quick", action="store_true", help="run only a few short requests")
    parser.add_argument(
        "--only", action="append", choices=list(CHANGES), help="run only this rung; may be repeated"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a plot into this .png, .svg or .pdf")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    return parser
