"""The tables of single ideas, each printed by a program of its own."""

import subprocess
import sys

WHOLE: dict[str, tuple[str, ...]] = {
    "quant": (),
    "kv_quant": (),
    "speculation": ("--batches", "1", "8", "--rounds", "1"),
    "handoff": (),
    "grammar": (),
}
"""The programs with their arguments; together they take some minutes."""

QUICK: dict[str, tuple[str, ...]] = {
    "quant": ("--layers", "2"),
    "kv_quant": (),
    "speculation": ("--quick", "--batches", "1"),
    "handoff": ("--tokens", "512", "--rounds", "1"),
    "grammar": ("--vocab", "2048", "--tokens", "20"),
}
"""The arguments with which each program takes moments."""


def print_tables(*, quick: bool) -> list[str]:
    """Run all programs, and return the names of those that failed."""
    failed = []
    for name, arguments in (QUICK if quick else WHOLE).items():
        sys.stdout.flush()
        program = [sys.executable, "-m", f"tests.benchmarks.engine.{name}"]
        # A process for each: they set torch's threads, and what one leaves in memory would slow the next.
        if subprocess.run([*program, *arguments], check=False).returncode:
            failed.append(name)
    return failed
