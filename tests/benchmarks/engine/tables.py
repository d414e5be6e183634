"""The tables of single ideas, each a program of its own: printed one after the other."""

import subprocess
import sys

WHOLE: dict[str, tuple[str, ...]] = {
    "quant": (),
    "kv_quant": (),
    "speculation": ("--batches", "1", "8", "--rounds", "1"),
    "handoff": (),
    "grammar": (),
}
"""All of them together take some minutes."""

QUICK: dict[str, tuple[str, ...]] = {
    "quant": ("--layers", "2"),
    "kv_quant": (),
    "speculation": ("--quick", "--batches", "1"),
    "handoff": ("--tokens", "512", "--rounds", "1"),
    "grammar": ("--vocab", "2048", "--tokens", "20"),
}
"""What makes each of them take moments."""


def print_tables(*, quick: bool) -> list[str]:
    """Run all of them; the names of those that failed."""
    failed = []
    for name, arguments in (QUICK if quick else WHOLE).items():
        sys.stdout.flush()
        program = [sys.executable, "-m", f"tests.benchmarks.engine.{name}"]
        # A process each: they set torch's threads, and what one leaves in memory slows the next.
        if subprocess.run([*program, *arguments], check=False).returncode:
            failed.append(name)
    return failed
