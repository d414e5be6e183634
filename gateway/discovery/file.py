"""Finds workers in a file that another program writes: a YAML or JSON list like `workers` in settings.

References are replaced as in settings, and relative paths start at the directory of the file. An empty file is one
that is being written.
"""

import asyncio
from pathlib import Path

import msgspec
import yaml

from gateway.discovery.source import SourceUnavailable
from gateway.settings.checks.worker_checks import worker_problems
from gateway.settings.error_messages import explain_error
from gateway.settings.sources import process_references, with_absolute_files
from gateway.settings.types import Secret, SettingsProblem
from gateway.settings.workers import WorkerSettings, expand_workers

FILE_BYTES_MAX = 4 * 2**20


class FileSource:
    """A source that reads a file again when it has changed. Writers should rename a complete file into place."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.name = f"file {path}"
        self._seconds = seconds
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._found: list[WorkerSettings] = []

    async def find(self) -> list[WorkerSettings]:
        """Return the workers of the file. Raises SourceUnavailable if it cannot be read or is wrong."""
        return await asyncio.to_thread(self._read)

    async def wait(self) -> None:
        """Wait until the file is looked at again."""
        await asyncio.sleep(self._seconds)

    def _read(self) -> list[WorkerSettings]:
        try:
            state = self._path.stat()
            seen = (state.st_mtime_ns, state.st_size, state.st_ino)
            if seen == self._seen:
                return self._found
            if state.st_size > FILE_BYTES_MAX:
                raise SourceUnavailable(f"the file is larger than {FILE_BYTES_MAX} bytes")
            listed = yaml.safe_load(self._path.read_text(encoding="utf-8-sig"))
            if listed is None:
                raise SourceUnavailable("the file is empty; `[]` is a list without workers")
            here = self._path.parent
            listed = process_references(here).replace_in_tree(listed, ())
            self._found = parse_workers(with_absolute_files(listed, (), lambda _, name: str(here / name)))
        except OSError as err:
            raise SourceUnavailable(f"the file cannot be read: {err.strerror}") from err
        except (yaml.YAMLError, UnicodeDecodeError) as err:
            raise SourceUnavailable("the file is not valid YAML") from err
        except SettingsProblem as err:
            raise SourceUnavailable(str(err)) from err
        self._seen = seen
        return self._found


def parse_workers(listed: object) -> list[WorkerSettings]:
    """Return the workers of a parsed list. Raises SourceUnavailable, which names the setting but not its value."""
    try:
        workers = msgspec.convert(expand_workers(listed), list[WorkerSettings], dec_hook=_decode)
    except msgspec.ValidationError as err:
        raise SourceUnavailable(
            f"the list of workers is wrong: {explain_error(str(err), WorkerSettings, {})}"
        ) from err
    for at, worker in enumerate(workers):
        for problem in worker_problems(worker, f"$[{at}]"):
            raise SourceUnavailable(problem)
    return workers


def parse_worker(given: object) -> WorkerSettings:
    """Return one parsed worker. Raises SourceUnavailable with a text that begins with the field."""
    try:
        (worker,) = parse_workers([given])
    except SourceUnavailable as err:
        raise SourceUnavailable(str(err).partition("$[0].")[2] or str(err)) from err
    return worker


def _decode(wanted: type, given: object) -> object:
    if wanted is Secret and isinstance(given, str):
        return Secret(given)
    raise ValueError(f"{wanted.__name__} cannot be given here")
