"""The Python environments of the other engines: this one, an earlier one, or a new one.

An engine that cannot be had is no failure of the benchmark: its row says SKIPPED and why.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

INSTALL_SECONDS_MAX = 1800
REASON_CHARACTERS_MAX = 160


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another engine."""

    name: str
    subject: str
    """Its module in `subjects`."""
    module: str
    """The module that it is imported as."""
    packages: tuple[str, ...]
    """What pip installs, one after the other."""


PEERS = (
    Peer(
        name="nano-vllm",
        subject="nano_vllm",
        module="nanovllm",
        packages=("flash-attn", "git+https://github.com/GeeeekExplorer/nano-vllm.git"),
    ),
    Peer(name="vLLM", subject="vllm", module="vllm", packages=("vllm",)),
)


class PeerMissing(Exception):
    """Another engine cannot be run here; the message says why."""


def python_of(peer: Peer, root: Path) -> Path:
    """Return a Python that has the engine, in an environment under `root` if this one has not.

    Raises:
        PeerMissing: the engine cannot be installed.
    """
    own, made = Path(sys.executable), root / peer.name / "bin" / "python"
    for python in (own, made):
        if python.exists() and _succeeds([str(python), "-c", f"import {peer.module}"]):
            return python
    commands = [
        [sys.executable, "-m", "venv", str(root / peer.name)],
        # Packages with CUDA code of their own are built against the torch that is there.
        [str(made), "-m", "pip", "install", "--quiet", "torch", "wheel", "setuptools", "psutil", "numpy"],
        *(
            [str(made), "-m", "pip", "install", "--quiet", "--no-build-isolation", package]
            for package in peer.packages
        ),
    ]
    for command in commands:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired as err:
            raise PeerMissing(f"installing {command[-1]} took more than {INSTALL_SECONDS_MAX} s") from err
        if done.returncode:
            raise PeerMissing(f"{command[-1]} cannot be installed: {last_line(done.stderr)}")
    return made


def last_line(output: str) -> str:
    """Return the last line with an error, or the last one with anything, not longer than a table bears."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[-1][:REASON_CHARACTERS_MAX]


def _succeeds(command: list[str]) -> bool:
    try:
        return not subprocess.run(command, capture_output=True, timeout=120, check=False).returncode
    except subprocess.TimeoutExpired:
        return False
