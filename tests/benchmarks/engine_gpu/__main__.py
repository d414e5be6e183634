"""Measure the embedded engine, nano-vllm and vLLM on one GPU.

    python -m tests.benchmarks.engine_gpu [--device cuda|cpu] [--shape 1.5B] [--json FILE]

Without a CUDA device it says SKIPPED and ends with 0. `--device cpu` tries the benchmark itself: it measures
the embedded engine with a tiny model. No figure fails the build.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import orjson
import torch
from rich.console import Console

from gateway.bench.machine import machine, versions
from tests.benchmarks.engine_gpu.orders import Order, Speed, read_speeds, write_order
from tests.benchmarks.engine_gpu.peers import PEERS, Peer, PeerMissing, last_line, python_of
from tests.benchmarks.engine_gpu.roofline import Roofline, copy_bandwidth
from tests.benchmarks.engine_gpu.shapes import SHAPES, Shape, weight_bytes
from tests.benchmarks.engine_gpu.table import Outcome, document, speed_table
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.kv.kv_codec import kv_codec

ROOT = Path(__file__).parents[3]
PEERS_AT = ROOT / ".tools" / "engine-gpu"
SUBJECT_SECONDS_MAX = 1800
ROUNDS = 3
EMBEDDED: dict[str, dict[str, object]] = {
    "radixgate": {},
    "radixgate, no CUDA graphs": {"cuda_graphs": False},
    "radixgate, sdpa": {"attention_backend": "sdpa"},
}
"""The embedded engine as it starts by itself, then without each part of its GPU path."""


def main() -> int:
    """Measure, print the table, write the JSON file if one was asked for, and return the exit code."""
    options = _options()
    device = "cuda" if options.device is None else options.device
    if device == "cuda" and not torch.cuda.is_available():
        print(
            "SKIPPED: bench-engine-gpu: torch sees no CUDA device (--device cpu tries the benchmark itself)"
        )
        return 0
    console = Console(width=None if sys.stdout.isatty() else 160)
    shape = SHAPES[options.shape or ("1.5B" if device == "cuda" else "tiny")]
    with tempfile.TemporaryDirectory(prefix="radixgate-bench-gpu-") as directory:
        console.print(f"{shape.name}: building ...", style="dim")
        order, roofline = _prepared(shape, Path(directory), device, options.rounds)
        outcomes: dict[str, Outcome] = {}
        for name, settings in EMBEDDED.items():
            console.print(f"{name} ...", style="dim")
            outcomes[name] = embedded(replace(order, settings=settings))
        for peer in PEERS:
            console.print(f"{peer.name} ...", style="dim")
            outcomes[peer.name] = other(peer, order)
    console.print(speed_table(order, roofline, outcomes))
    for name, outcome in outcomes.items():
        if isinstance(outcome, str):
            console.print(f"SKIPPED: {name}: {outcome}", highlight=False, soft_wrap=True)
    name = torch.cuda.get_device_name() if device == "cuda" else "none"
    console.print(f"device {name}, versions {versions('torch', 'triton')}", highlight=False)
    if options.json is not None:
        figures = {
            "machine": machine() | {"cuda": name},
            "versions": versions("torch", "triton"),
            "shape": shape.name,
            "bandwidth": roofline.bandwidth,
            "runs": document(order, roofline, outcomes),
        }
        options.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    return 0


def embedded(order: Order) -> Outcome:
    """Return the speeds of the embedded engine, or why there are none."""
    if order.device != "cuda" and order.settings:
        return "there is a GPU path on CUDA only"
    return run(Path(sys.executable), "embedded", order)


def other(peer: Peer, order: Order) -> Outcome:
    """Return the speeds of another engine, or why there are none."""
    if order.device != "cuda":
        return "needs a CUDA device"
    try:
        return run(python_of(peer, PEERS_AT), peer.subject, order)
    except PeerMissing as err:
        return str(err)


def run(python: Path, subject: str, order: Order) -> Outcome:
    """Run a subject in a process of its own, and return its speeds, or why there are none."""
    try:
        done = subprocess.run(
            [str(python), "-m", f"tests.benchmarks.engine_gpu.subjects.{subject}"],
            input=write_order(order),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SUBJECT_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"took more than {SUBJECT_SECONDS_MAX} s"
    if done.returncode:
        return f"ended with {done.returncode}: {last_line(done.stderr)}"
    speeds: list[Speed] = read_speeds(done.stdout)
    return speeds


def _prepared(shape: Shape, root: Path, device: str, rounds: int) -> tuple[Order, Roofline]:
    """Build the checkpoint and measure the device."""
    model = shape.built(root)
    spec, dtype = ModelSpec.from_directory(model), getattr(torch, shape.dtype)
    order = Order(
        model=str(model),
        device=device,
        dtype=shape.dtype,
        vocab=spec.vocab_size,
        batches=shape.batches,
        prompt_tokens=shape.prompt_tokens,
        decode_steps=shape.decode_steps,
        rounds=rounds,
        settings={},
    )
    roofline = Roofline(
        weight_bytes=weight_bytes(spec, dtype.itemsize),
        kv_bytes_per_token=kv_codec("auto", dtype).bytes_per_token(spec),
        bandwidth=copy_bandwidth(device),
    )
    return order, roofline


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-engine-gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), help="by default CUDA")
    parser.add_argument("--shape", choices=tuple(SHAPES), help="by default 1.5B, and tiny on the CPU")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each measurement that count")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
