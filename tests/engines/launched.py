"""`radixgate worker --engine ...` with a real engine, and all processes that it starts."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.engines.processes import INSTALLED, MODEL, ROOT, Engine

STOP_SECONDS_MAX = 60
WORKS = ("vllm::enginecor", "sglang::sched")
"""How the processes are called in which engines schedule and compute."""

Alive = tuple[int, str]
"""A process: its number and when it was started, by which it is told from a later one of the same number."""


class LaunchedWorker:
    """One command, its engine, and where it registers. It has no state but theirs, and can be started again."""

    def __init__(self, engine: Engine, directory: Path, redis_url: str) -> None:
        self.engine = engine
        self.prefix = f"launched-{engine.kind}-{os.getpid()}"
        self.log = directory / "command.log"
        self._redis_url = redis_url
        self._python = _interpreter(engine, directory / "python")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        # On loopback it is left out unless it is asked for.
        more = ["--load-feed"] if self.engine.kind == "sglang" else []
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "gateway", "worker", "--engine", self.engine.kind),
                    *("--model", str(self.engine.checkpoint), "--served-model-name", MODEL),
                    *("--python", str(self._python), "--port", "0", "--drain-seconds", "60"),
                    *("--register", self._redis_url, "--register-prefix", self.prefix),
                    *("--register-id", "w0", *more, "--", *self.engine.on_cpu()),
                ],
                stdout=log,
                stderr=log,
                env=environment,
                # There this tree's command is found, and not another one that is installed.
                cwd=ROOT,
            )

    def engine_processes(self) -> dict[Alive, str]:
        """All that have come of the command, the first one first, and what they are called."""
        assert self.process is not None
        below, found = [self.process.pid], {}
        everyone = _processes()
        for parent in below:
            for one, (its_parent, name) in everyone.items():
                if its_parent == parent:
                    below.append(one[0])
                    found[one] = name
        return found

    def kill(self, *, worker: bool) -> None:
        """SIGKILL to the engine's server, or to the process in which it computes."""
        processes = self.engine_processes()
        victims = [at for at, name in processes.items() if not worker or name.lower().startswith(WORKS)]
        assert victims, processes
        os.kill(victims[0][0], signal.SIGKILL)

    def stop(self) -> int:
        """Its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=STOP_SECONDS_MAX + 60)

    def close(self) -> None:
        """Nothing of it is left."""
        if self.runs:
            left = self.engine_processes()
            self.process.kill()
            self.process.wait()
            for number, _ in alive(left):
                os.kill(number, signal.SIGKILL)


def alive(those: dict[Alive, str]) -> dict[Alive, str]:
    """Those that still are."""
    everyone = _processes()
    return {one: name for one, name in those.items() if one in everyone}


def gone(those: dict[Alive, str], seconds: float = STOP_SECONDS_MAX) -> bool:
    """None of them is left, within a while."""
    deadline = time.monotonic() + seconds
    while alive(those) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not alive(those)


def _processes() -> dict[Alive, tuple[int, str]]:
    """Return the parent and name of every process, without those that have ended but were not waited for."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            before, _, after = status.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        number, _, name = before.partition(" (")
        fields = after.split()
        if fields[0] not in "ZX":
            found[int(number), fields[19]] = (int(fields[1]), name)
    return found


def _interpreter(engine: Engine, at: Path) -> Path:
    """Stands for the interpreter that has the engine: it knows what the engine needs on a CPU."""
    variables = [f"{name}={value}" for name, value in engine.environment().items()]
    command = ["env", *variables, str(INSTALLED / "venv/bin/python")]
    # A program of its own takes the place of `-m MODULE`.
    own = [] if engine.program[0] == "-m" else list(engine.program)
    skip = "shift 2\n" if own else ""
    # With -c it is asked what it has installed.
    asked = f'[ "$1" = -c ] && exec {shlex.join(command)} "$@"\n'
    at.write_text(f'#!/bin/sh\n{asked}{skip}exec {shlex.join([*command, *own])} "$@"\n')
    at.chmod(0o755)
    return at
