"""Launches an engine as a child process with the flags that a gateway needs, and watches over the process.

    starting --answers--> up --silent for too long, or dead--> waiting (back-off) --> starting
        `--dead, or not up in time-------------------------------^
    stop: SIGTERM to all of its processes, SIGKILL to what is left

Flags of the caller take precedence: a flag that the caller sets is not added.
"""

import asyncio
import logging
import os
import shlex
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest

from workers.adapter import WorkerFailed
from workers.launching import engine_flags as flags
from workers.launching.child_process import die_with_parent
from workers.worker import Role

log = logging.getLogger(__name__)

ENGINES = ("sglang", "vllm")
MODULES = {"sglang": "sglang.launch_server", "vllm": "vllm.entrypoints.openai.api_server"}

SECRETS = ("-key", "_key", "-token", "_token", "-password", "_password")
"""Endings of flags with secret values."""

RESTART_SECONDS = (1.0, 5.0, 15.0, 60.0)
"""Waits before successive restarts."""

STEADY_SECONDS = 300.0
"""After an engine was up for this long, its next restart has the shortest wait again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaunch:
    """Which engine to launch, and where it listens."""

    engine: str
    """One of ENGINES."""
    model: str
    python: str
    """The Python interpreter of the environment in which the engine is installed."""
    host: str
    port: int
    served_model_name: str | None = None
    page_size: int | None = None
    events_port: int | None = None
    replay_port: int | None = None
    """Ports of KV events and of their replay; None: none are published; 0: vLLM chooses."""
    events_at: str | None = None
    """Address on which KV events are published; None: all."""
    loads_port: int | None = None
    """Port of the load feed; None: no feed."""
    role: Role = Role.BOTH
    bootstrap_port: int | None = None
    """Port on which a prefill worker hands over its KV blocks."""
    more: tuple[str, ...] = ()
    """Further flags of the caller."""


def command_line(launch: EngineLaunch) -> list[str]:
    """Return program and arguments."""
    engine = launch.engine
    own_flags = [
        ("--model-path" if engine == "sglang" else "--model", launch.model),
        ("--served-model-name", launch.served_model_name or launch.model),
        ("--host", launch.host),
        ("--port", str(launch.port)),
        flags.page_size_flags(engine, launch.page_size),
        flags.PREFIX_CACHING.get(engine, ()),
        flags.CACHE_REPORT[engine],
        flags.METRICS.get(engine, ()),
        flags.PRIORITY[engine],
        *_disaggregation_flags(launch),
    ]
    caller_flags = {word.partition("=")[0] for word in launch.more if word.startswith("-")}
    if launch.events_port is not None and launch.replay_port is not None:
        events = flags.kv_events_flags(engine, launch.events_port, launch.replay_port, launch.events_at)
        own_flags.append(events)
        # Gateways find the load feed through the KV events. If the caller configures these, it configures the feed.
        if launch.loads_port is not None and events[0] not in caller_flags:
            own_flags.append(flags.load_feed_flags(engine, launch.loads_port))
    kept = [word for part in own_flags if part and part[0] not in caller_flags for word in part]
    return [launch.python, "-m", MODULES[engine], *kept, *launch.more]


def environment(launch: EngineLaunch) -> dict[str, str]:
    """Return environment variables for the engine: the address on which vLLM listens, if vLLM chooses the port."""
    if launch.engine == "vllm" and launch.events_port == 0 and launch.events_at is not None:
        return {"VLLM_HOST_IP": launch.events_at}
    return {}


def data_parallel_size(more: Sequence[str]) -> int:
    """Return the number of data-parallel ranks in the caller's flags.

    Rank r publishes its KV events on port + r.
    """
    size = flag_value(more, "--data-parallel-size", "--dp-size", "--dp", "-dp")
    return max(1, int(size)) if size is not None and size.isascii() and size.isdigit() else 1


def flag_value(more: Sequence[str], *names: str) -> str | None:
    """Return the value of one of these flags, after `=` or in the next word; the last occurrence counts."""
    found = None
    for word, after in zip_longest(more, more[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else after
    return found


def redacted(command: Sequence[str]) -> str:
    """Return a command quoted for a shell, with `***` in place of secrets."""
    words, secret = [], False
    for word in command:
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            secret = name.endswith(SECRETS)
            words.append(f"{name}=***" if equals and secret else word)
        else:
            words.append("***" if secret else word)
    return shlex.join(words)


def _disaggregation_flags(launch: EngineLaunch) -> list[tuple[str, ...]]:
    """Return the flags that make the engine the prefill or decode half of a pair."""
    if launch.role is Role.BOTH:
        return []
    if launch.engine == "vllm":
        return [("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}')]
    parts: list[tuple[str, ...]] = [("--disaggregation-mode", launch.role.value)]
    if launch.bootstrap_port is not None:
        parts.append(("--disaggregation-bootstrap-port", str(launch.bootstrap_port)))
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimeouts:
    """Time limits for a launched engine, in seconds."""

    start_seconds: float = 1800.0
    """Longest time until its first answer."""
    silent_seconds: float = 30.0
    """Time without an answer after which an engine that was up is restarted."""
    stop_seconds: float = 30.0
    """Time between SIGTERM and SIGKILL."""
    poll_seconds: float = 1.0
    """Time between two checks."""
    restart_seconds: Sequence[float] = RESTART_SECONDS
    """Waits before successive restarts; the last one repeats."""


@dataclass(slots=True)
class EngineState:
    """Whether a launched engine is up, for tasks that wait for it."""

    up: bool = False
    """Whether it answers."""
    restarts: int = 0
    """How often it was restarted."""
    _waiting: list["asyncio.Future[None]"] = field(default_factory=list)

    def update(self, up: bool) -> None:
        """Set whether the engine is up, and wake the waiting tasks."""
        self.up = up
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def wait_until(self, *, up: bool) -> None:
        """Wait until the engine is up, or is not."""
        while self.up is not up:
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]


class LaunchedEngine:
    """An engine that is started, watched and restarted as a child process.

    `probe` checks once whether the engine serves, and raises WorkerFailed if not. `environment` has
    environment variables for the engine, which are used unless they are set already.
    """

    def __init__(
        self,
        command: Sequence[str],
        probe: Callable[[], Awaitable[object]],
        *,
        timeouts: EngineTimeouts | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.state = EngineState()
        self._command = command
        self._probe = probe
        self._timeouts = timeouts or EngineTimeouts()
        self._environment = environment or {}
        self._process: Process | None = None
        self._last_error = ""

    @property
    def pid(self) -> int | None:
        """Process id; None while no process runs."""
        return self._process.pid if self._process is not None else None

    async def run(self) -> None:
        """Keep the engine running until this is cancelled, then stop it. Raises OSError if it cannot be started."""
        failures = 0
        try:
            while True:
                steady = await self._run_once()
                failures = 0 if steady else failures
                seconds = self._timeouts.restart_seconds[
                    min(failures, len(self._timeouts.restart_seconds) - 1)
                ]
                failures += 1
                self.state.restarts += 1
                log.warning("the engine is restarted in %g seconds", seconds)
                await asyncio.sleep(seconds)
        finally:
            await self.stop()

    async def _run_once(self) -> bool:
        """Run the process from its start to its end; return whether it was up for STEADY_SECONDS."""
        loop = asyncio.get_running_loop()
        # The engine has its own process group, since a signal to the first process would not reach its children.
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=DEVNULL,
            env={**self._environment, **os.environ},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        started = answered = loop.time()
        up_since: float | None = None
        while process.returncode is None:
            if await self._answers():
                answered = loop.time()
                up_since = up_since if up_since is not None else answered
                self.state.update(True)
            now = loop.time()
            if up_since is None and now - started > self._timeouts.start_seconds:
                log.error(
                    "the engine does not answer after %g seconds: %s",
                    self._timeouts.start_seconds,
                    self._last_error,
                )
                break
            if up_since is not None and now - answered > self._timeouts.silent_seconds:
                log.error(
                    "the engine has not answered for %g seconds: %s",
                    self._timeouts.silent_seconds,
                    self._last_error,
                )
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), self._timeouts.poll_seconds)
        if process.returncode is not None:
            log.error("the engine has ended with code %s", process.returncode)
        await self.stop()
        return up_since is not None and loop.time() - up_since > STEADY_SECONDS

    async def _answers(self) -> bool:
        try:
            await self._probe()
        except WorkerFailed as err:
            self._last_error = str(err)
            return False
        return True

    async def stop(self) -> None:
        """Stop all processes of the engine. It is safe to call this twice."""
        process, self._process = self._process, None
        self.state.update(False)
        if process is None:
            return
        if process.returncode is None:
            _signal(process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), self._timeouts.stop_seconds)
        # Also done if the first process has ended by itself, since some of its children may still run.
        _signal(process.pid, signal.SIGKILL)
        await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
