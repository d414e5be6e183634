"""A real PostgreSQL for tests: the installed one, else Debian's, unpacked without root (tests/debian_postgres)."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from tests.stage.ports import free_port
from workers.launching.child_process import die_with_parent

ROOT = Path(__file__).parents[2]
NOBODY = 65534
START_SECONDS_MAX = 90.0


class PostgresMissing(Exception):
    """PostgreSQL cannot be installed here; the text says why."""


def binaries() -> Path:
    """Return the directory of the programs postgres and initdb. Raises PostgresMissing."""
    given = os.environ.get("RADIXGATE_TEST_POSTGRES")
    if given is not None:
        return Path(given)
    found = shutil.which("postgres")
    if found is not None:
        return Path(found).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if installed:
        return installed[-1].parent
    made = subprocess.run(
        [ROOT / "tests" / "debian_postgres", ROOT / ".tools" / "postgres"], capture_output=True, text=True
    )
    if made.returncode != 0:
        raise PostgresMissing(made.stderr.strip() or "PostgreSQL cannot be had here")
    return Path(made.stdout.strip())


class PostgresServer:
    """One PostgreSQL cluster in `directory`, on a port that it keeps. Local connections need no password."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._bin = binaries()
        self._count = 0

    def url(self, name: str = "postgres") -> str:
        """Return the URL of a database of this cluster."""
        return f"postgresql://test@127.0.0.1:{self.port}/{name}"

    def prepare(self) -> None:
        """Make the cluster's files. Raises PostgresMissing where initdb fails."""
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root.
            os.chown(self.directory, NOBODY, NOBODY)
            self.directory.chmod(0o755)
        options = ["--auth=trust", "--username=test", "--encoding=UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(
            [self._bin / "initdb", "-D", self.data, *options], capture_output=True, text=True, **_as_nobody()
        )
        if made.returncode != 0:
            raise PostgresMissing(f"initdb: {made.stderr.strip()}")

    def start(self) -> None:
        """Start the server and wait until it is ready. Raises PostgresMissing."""
        options = ["-p", str(self.port), "-k", "", "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        self.process = subprocess.Popen(
            [self._bin / "postgres", "-D", self.data, *options],
            stdout=subprocess.DEVNULL,
            stderr=(self.directory / "log").open("ab"),
            preexec_fn=die_with_parent,
            **_as_nobody(),
        )
        until = time.monotonic() + START_SECONDS_MAX
        while not (self.data / "postmaster.pid").exists() or "ready" not in "".join(
            (self.data / "postmaster.pid").read_text().splitlines()[-1:]
        ):
            if time.monotonic() > until or self.process.poll() is not None:
                raise PostgresMissing((self.directory / "log").read_text(errors="replace")[-500:])
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server at once, as in a crash; `start` brings it back with its data."""
        if self.process is not None:
            self.process.send_signal(3)
            self.process.wait()
            self.process = None


def _as_nobody() -> dict[str, int | list[int]]:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
