"""A server of the S3 protocol: moto, which `make test` installs into a directory of its own."""

import asyncio
import os
import secrets
import subprocess
import sys
from pathlib import Path

import aiohttp

from tests.stage.ports import free_port
from workers.launching.child_process import die_with_parent

INSTALLED = Path(__file__).parents[2] / ".tools" / "moto"


class S3Missing(Exception):
    """moto is not installed."""


class S3Server:
    """A server process whose buckets tests make."""

    def __init__(self, log: Path) -> None:
        if not (INSTALLED / "moto").is_dir():
            raise S3Missing("moto is not installed; `make test` puts it into .tools/moto")
        self._log = log
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the server; `bucket` waits until it answers."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)],
                env={**os.environ, "PYTHONPATH": str(INSTALLED)},
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    def stop(self) -> None:
        """Kill the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def bucket(self) -> str:
        """Make a bucket as soon as the server answers, and return its name."""
        name = f"bucket-{secrets.token_hex(6)}"
        async with aiohttp.ClientSession() as http:
            for _ in range(600):
                try:
                    async with http.put(f"{self.url}/{name}") as answer:
                        assert answer.status == 200, await answer.text()
                        return name
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.1)
        raise AssertionError(self._log.read_text())

    async def parts(self, bucket: str) -> int:
        """Return how many multipart uploads were begun and neither completed nor aborted."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/{bucket}?uploads") as answer:
            return (await answer.text()).count("<Upload>")
