"""The start of a gateway by the addresses of its workers, without a settings file."""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.found_workers import (
    FoundWorker,
    as_assignments,
    curl_line,
    describe,
    find_workers,
    settings_of,
    worker_urls,
)
from gateway.cli.support.free_ports import first_free_port
from gateway.cli.support.options import set_again
from gateway.cli.support.settings_file import as_yaml, write_settings
from gateway.settings.sources import load_settings, process_references

DEFAULT_PORTS = {"listen": 8000, "admin": 8001}
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickStart:
    """The workers that were found for a gateway without a settings file, and the ports that are free for it."""

    found: tuple[FoundWorker, ...]
    key_variable: str | None
    """The environment variable that has the key of the workers."""
    ports: Mapping[str, int]
    """Ports by listener, where they are not the default."""
    given: tuple[str, ...]
    """Values of --set, which no file has."""

    @classmethod
    def find(
        cls, workers: Sequence[str], key_variable: str | None, seconds_max: float, given: Sequence[str]
    ) -> "QuickStart":
        """Ask the workers at these addresses for their kind and models, and print the answers.

        Args:
            workers: addresses of the workers.
            key_variable: environment variable with their key, if they require one.
            seconds_max: longest wait for a worker that does not answer.
            given: values of --set; a port that they name is not chosen.

        Raises:
            CommandError: an address is wrong, or a worker does not answer.
            SettingsProblem: a value of --set is wrong, or the variable is not set.
        """
        urls, key = worker_urls(workers), None
        if key_variable is not None:
            references = process_references(Path())
            key = references.replace_in_text(f"${{env:{key_variable}}}", "--worker-key-env")
        asked = find_workers(urls, key, seconds_max, _print_notice)
        found = tuple(asyncio.run(asked))
        for worker in found:
            print("\n".join(describe(worker)), flush=True)
        return cls(found=found, key_variable=key_variable, ports=gateway_ports(given), given=tuple(given))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as a settings file would have them."""
        ports = {listener: {"port": port} for listener, port in self.ports.items()}
        return {**ports, **settings_of(self.found, self.key_variable)}

    @property
    def assignments(self) -> list[str]:
        """The settings as values of --set."""
        ports = [f"{listener}.port={port}" for listener, port in self.ports.items()]
        return [*ports, *as_assignments(settings_of(self.found, self.key_variable))]

    def write(self, file: Path) -> None:
        """Write the settings file. Raises CommandError, also if the file exists."""
        try:
            write_settings(file, self.settings, "x")
        except FileExistsError:
            raise CommandError(f"--write-config: {file} exists; start with --config {file}", 2) from None
        except OSError as err:
            raise CommandError(f"--write-config: {file} cannot be written: {err.strerror}", 2) from err
        print(f"written to {file}", flush=True)

    def next_steps(self, url: str, written: Path | None, *, needs_key: bool) -> Iterator[str]:
        """Yield lines that say what to do next; `written` is the settings file that was written."""
        yield "\nA first request:\n"
        yield f"  {curl_line(url, self.found[0], 'KEY' if needs_key else None)}"
        if needs_key:
            yield "\n  KEY: a key of `radixgate keys create TENANT`"
        if written is not None:
            yield f"\nThe next start: radixgate serve --config {written}{set_again(self.given)}"
            return
        yield "\nThe same as a settings file (--write-config gateway.yaml writes it):\n"
        yield from (f"  {line}" for line in as_yaml(self.settings).splitlines())


def _print_notice(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def gateway_ports(given: Sequence[str]) -> dict[str, int]:
    """Return the ports to listen on where the default port is taken, often by the worker itself."""
    sources = load_settings(None, assignments=given, complete=False).sources
    free = {
        listener: first_free_port(LOOPBACK, port)
        for listener, port in DEFAULT_PORTS.items()
        if (listener, "port") not in sources
    }
    return {listener: port for listener, port in free.items() if port != DEFAULT_PORTS[listener]}
