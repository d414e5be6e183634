"""Child processes, which are restarted when they die, and never outlive the gateway."""

import asyncio
import logging
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO

from workers.launching.child_process import die_with_parent

log = logging.getLogger(__name__)

STOP_SECONDS_MAX = 5.0
RESTART_SECONDS = (0.2, 1.0, 5.0)
OUTPUT_LINES_KEPT = 20


class ChildFailed(Exception):
    """A child process did not become ready; the message holds the last line of its output."""


class Child:
    """One child process, which prints a line with its URL when it is ready.

    Its standard error goes to `log_file`, or to the standard error of this process where that is None.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[str | None], Sequence[str]],
        ready: "re.Pattern[str]",
        log_file: Path | None,
        environment: Mapping[str, str] | None = None,
        stop_seconds: float = STOP_SECONDS_MAX,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Prepare a child that has not started yet.

        Args:
            name: The child's name in log lines and errors.
            command: Builds the command line. Its argument is the URL of the previous run, so that a restarted child
                can listen at the same address; None at the first start.
            ready: Matches the line of output that the child prints when it is ready; its one group is the URL.
            log_file: Where standard error is appended; None for the standard error of this process.
            environment: Variables that are added to those of this process.
            stop_seconds: The time between SIGTERM and SIGKILL.
            descriptors: Open files that the child inherits under the same numbers.
        """
        self.name = name
        self.url: str | None = None
        self.restarts = 0
        self._command = command
        self._ready = ready
        self._log_file = log_file
        self._environment = environment
        self._stop_seconds = stop_seconds
        self._descriptors = descriptors
        self._process: Process | None = None
        self._output: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the child; None before its first start."""
        return self._process.pid if self._process is not None else None

    async def start(self, seconds_max: float) -> str:
        """Start the child, wait until it is ready, and return its URL. Raises ChildFailed."""
        with self._log_file.open("ab") if self._log_file is not None else nullcontext() as errors:
            self._process = await self._new_process(errors)
        try:
            async with asyncio.timeout(seconds_max):
                self.url = await self._until_ready(self._process)
        except TimeoutError:
            await self.stop()
            raise ChildFailed(f"{self.name} is not ready after {seconds_max:g} seconds") from None
        self._output = asyncio.create_task(self._discard_output(self._process))
        return self.url

    async def restart_when_dead(self, seconds_max: float) -> None:
        """Restart the child whenever it dies, until this coroutine is cancelled."""
        failures = 0
        while True:
            assert self._process is not None
            code = await self._process.wait()
            log.warning("%s has died with exit code %s and is restarted", self.name, code)
            await asyncio.sleep(RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)])
            try:
                await self.start(seconds_max)
                self.restarts += 1
                failures = 0
            except ChildFailed as err:
                failures += 1
                log.warning("%s", err)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child, if it is alive."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def stop(self) -> None:
        """Stop the child with SIGTERM, and with SIGKILL if it has not ended after `stop_seconds`."""
        process = self._process
        if process is not None and process.returncode is None:
            # A process that ends at this very moment cannot be signalled, though its exit code is not known yet.
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), self._stop_seconds)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._output is not None:
            self._output.cancel()

    async def _new_process(self, errors: IO[bytes] | None) -> Process:
        """Start the command. `errors` is the file of its standard error, None for that of this process."""
        return await asyncio.create_subprocess_exec(
            *self._command(self.url),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=errors,
            env={**os.environ, **(self._environment or {})},
            start_new_session=True,
            pass_fds=self._descriptors,
            preexec_fn=die_with_parent,
        )

    async def _until_ready(self, process: Process) -> str:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            found = self._ready.search(line.decode(errors="replace"))
            if found is not None:
                return found[1]
        await process.wait()
        raise ChildFailed(f"{self.name} ended with code {process.returncode}: {self._last_words()}")

    def _last_words(self) -> str:
        if self._log_file is None:
            return "its error is in the output above"
        lines = self._log_file.read_text(errors="replace").splitlines()[-OUTPUT_LINES_KEPT:]
        return lines[-1] if lines else "it wrote no error"

    async def _discard_output(self, process: Process) -> None:
        """Read and discard the output of the child, so that a full pipe never blocks it."""
        assert process.stdout is not None
        while await process.stdout.read(65536):
            pass
