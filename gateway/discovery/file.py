"""Workers from a file that others write: a YAML or JSON list, of the same form as `workers` in the settings.

References to secrets are followed as they are there, and paths begin at the file. A file
without anything in it is one that is being written.
"""

import asyncio
from pathlib import Path

import msgspec
import yaml

from gateway.discovery.source import SourceUnavailable
from gateway.settings.checks import worker_problems
from gateway.settings.error_messages import explain_error
from gateway.settings.sources import process_references, with_absolute_files
from gateway.settings.types import Secret, SettingsProblem
from gateway.settings.workers import WorkerSettings

FILE_BYTES_MAX = 4 * 2**20


class FileSource:
    """Read again when it has changed. Whoever writes it should rename it into place, as everywhere."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.name = f"file {path}"
        self.seconds = seconds
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._found: list[WorkerSettings] = []

    async def find(self) -> list[WorkerSettings]:
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[WorkerSettings]:
        try:
            state = self._path.stat()
            seen = (state.st_mtime_ns, state.st_size, state.st_ino)
            if seen == self._seen:
                return self._found
            if state.st_size > FILE_BYTES_MAX:
                raise SourceUnavailable(f"it is larger than {FILE_BYTES_MAX} bytes")
            listed = yaml.safe_load(self._path.read_text(encoding="utf-8-sig"))
            if listed is None:
                raise SourceUnavailable("it is empty; `[]` is a list without workers")
            here = self._path.parent
            listed = process_references(here).within(listed, ())
            self._found = parse_workers(with_absolute_files(listed, (), lambda _, name: str(here / name)))
        except OSError as err:
            raise SourceUnavailable(f"it cannot be read: {err.strerror}") from err
        except (yaml.YAMLError, UnicodeDecodeError) as err:
            raise SourceUnavailable("it is no YAML") from err
        except SettingsProblem as err:
            raise SourceUnavailable(str(err)) from err
        self._seen = seen
        return self._found


def parse_workers(listed: object) -> list[WorkerSettings]:
    """Workers as they stand in YAML or JSON. Raises SourceAway, which names the place and no value."""
    try:
        workers = msgspec.convert(listed, list[WorkerSettings], dec_hook=_decoded)
    except msgspec.ValidationError as err:
        raise SourceUnavailable(
            f"it is no list of workers: {explain_error(str(err), WorkerSettings, {})}"
        ) from err
    for at, worker in enumerate(workers):
        for problem in worker_problems(worker, f"$[{at}]"):
            raise SourceUnavailable(problem)
    return workers


def parse_worker(given: object) -> WorkerSettings:
    """One of them. Raises SourceAway, whose words begin with the field."""
    try:
        (worker,) = parse_workers([given])
    except SourceUnavailable as err:
        raise SourceUnavailable(str(err).partition("$[0].")[2] or str(err)) from err
    return worker


def _decoded(wanted: type, given: object) -> object:
    if wanted is Secret and isinstance(given, str):
        return Secret(given)
    raise ValueError(f"{wanted.__name__} cannot be given here")
