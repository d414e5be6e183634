"""An engine as our child: the command line with what a gateway needs of it, and a watch over its life.

    starting --answers--> up --silent for too long, or dead--> waiting (back-off) --> starting
        `--dead, or not up in time-------------------------------^
    stop: SIGTERM to all of its processes, SIGKILL to what is left

What the caller adds wins: a flag of ours that it names too is left out.
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

from workers.adapter import WorkerUnreachable
from workers.launching import engine_flags as flags
from workers.launching.child_process import die_with_parent
from workers.worker import Role

log = logging.getLogger(__name__)

ENGINES = ("sglang", "vllm")
MODULES = {"sglang": "sglang.launch_server", "vllm": "vllm.entrypoints.openai.api_server"}

SECRETS = ("-key", "_key", "-token", "_token", "-password", "_password")
"""How flags end whose values nobody is to see."""

RESTART_SECONDS = (1.0, 5.0, 15.0, 60.0)
STEADY_SECONDS = 300.0
"""Whoever has been up for so long begins anew with the shortest wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is launched. `python`: the interpreter that has the engine. `events_port`, `replay_port`: of its KV
    events; None publishes none; 0: vLLM chooses. `events_at`: the address that they are published on, None: all.
    `loads_port`: of its load feed; None: none. `more`: flags of the caller's."""

    engine: str
    model: str
    python: str
    host: str
    port: int
    served_model_name: str | None = None
    page_size: int | None = None
    events_port: int | None = None
    replay_port: int | None = None
    events_at: str | None = None
    loads_port: int | None = None
    role: Role = Role.BOTH
    bootstrap_port: int | None = None
    more: tuple[str, ...] = ()


def command_line(launch: Launch) -> list[str]:
    """Program and arguments."""
    engine = launch.engine
    ours = [
        ("--model-path" if engine == "sglang" else "--model", launch.model),
        ("--served-model-name", launch.served_model_name or launch.model),
        ("--host", launch.host),
        ("--port", str(launch.port)),
        flags.page_size(engine, launch.page_size),
        flags.PREFIX_CACHING.get(engine, ()),
        flags.CACHE_REPORT[engine],
        flags.METRICS.get(engine, ()),
        flags.PRIORITY[engine],
        *_halved(launch),
    ]
    theirs = {word.partition("=")[0] for word in launch.more if word.startswith("-")}
    if launch.events_port is not None and launch.replay_port is not None:
        events = flags.kv_events(engine, launch.events_port, launch.replay_port, launch.events_at)
        ours.append(events)
        # It is found through the events: where they are the caller's, so is that.
        if launch.loads_port is not None and events[0] not in theirs:
            ours.append(flags.load_feed(engine, launch.loads_port))
    kept = [word for part in ours if part and part[0] not in theirs for word in part]
    return [launch.python, "-m", MODULES[engine], *kept, *launch.more]


def environment(launch: Launch) -> dict[str, str]:
    """Variables that the engine gets, unless they are set: where vLLM listens, if it chooses the port."""
    if launch.engine == "vllm" and launch.events_port == 0 and launch.events_at is not None:
        return {"VLLM_HOST_IP": launch.events_at}
    return {}


def ranks(more: Sequence[str]) -> int:
    """Data-parallel ranks that the caller's flags ask for: rank r publishes its KV events on the port + r."""
    told = value_of(more, "--data-parallel-size", "--dp-size", "--dp", "-dp")
    return max(1, int(told)) if told is not None and told.isascii() and told.isdigit() else 1


def value_of(more: Sequence[str], *names: str) -> str | None:
    """What stands behind one of these flags, as a word of its own or after `=`. Of several the last counts."""
    found = None
    for word, after in zip_longest(more, more[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else after
    return found


def shown(command: Sequence[str]) -> str:
    """As it is typed into a shell, without the secrets in it."""
    words, secret = [], False
    for word in command:
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            secret = name.endswith(SECRETS)
            words.append(f"{name}=***" if equals and secret else word)
        else:
            words.append("***" if secret else word)
    return shlex.join(words)


def _halved(launch: Launch) -> list[tuple[str, ...]]:
    """What makes it one half of a pair."""
    if launch.role is Role.BOTH:
        return []
    if launch.engine == "vllm":
        return [("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}')]
    parts: list[tuple[str, ...]] = [("--disaggregation-mode", launch.role.value)]
    if launch.bootstrap_port is not None:
        parts.append(("--disaggregation-bootstrap-port", str(launch.bootstrap_port)))
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds: `start` until it has to answer, `silent` until an engine that was up is started anew, `stop` between
    SIGTERM and SIGKILL, `look` between two looks."""

    start: float = 1800.0
    silent: float = 30.0
    stop: float = 30.0
    look: float = 1.0
    restart: Sequence[float] = RESTART_SECONDS


@dataclass(slots=True)
class EngineLife:
    """How it does. `up`: it answers. `restarts`: how often it was started anew."""

    up: bool = False
    restarts: int = 0
    _waiting: list["asyncio.Future[None]"] = field(default_factory=list)

    def move(self, up: bool) -> None:
        self.up = up
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def until(self, *, up: bool) -> None:
        """It is, or is not, up."""
        while self.up is not up:
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]


class LaunchedEngine:
    """`ask`: asks it once whether it serves. Raises WorkerUnreachable if it does not. `environment`: variables that
    it gets unless they are set."""

    def __init__(
        self,
        command: Sequence[str],
        ask: Callable[[], Awaitable[object]],
        *,
        patience: Patience | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.life = EngineLife()
        self._command = command
        self._ask = ask
        self._patience = patience or Patience()
        self._environment = environment or {}
        self._process: Process | None = None
        self._why = ""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def run(self) -> None:
        """Keeps it up until this is cancelled, and then stops it. Raises OSError if it cannot be started at all."""
        failures = 0
        try:
            while True:
                steady = await self._one_life()
                failures = 0 if steady else failures
                seconds = self._patience.restart[min(failures, len(self._patience.restart) - 1)]
                failures += 1
                self.life.restarts += 1
                log.warning("the engine is started again in %g seconds", seconds)
                await asyncio.sleep(seconds)
        finally:
            await self.stop()

    async def _one_life(self) -> bool:
        """From its start to its end. Was it up for long?"""
        loop = asyncio.get_running_loop()
        # A session of its own: engines have processes that a signal to the first would leave behind.
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=DEVNULL,
            env={**self._environment, **os.environ},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        started = heard = loop.time()
        up_since: float | None = None
        while process.returncode is None:
            if await self._answered():
                heard = loop.time()
                up_since = up_since if up_since is not None else heard
                self.life.move(True)
            now = loop.time()
            if up_since is None and now - started > self._patience.start:
                log.error("the engine does not answer after %g seconds: %s", self._patience.start, self._why)
                break
            if up_since is not None and now - heard > self._patience.silent:
                log.error("the engine has not answered for %g seconds: %s", self._patience.silent, self._why)
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), self._patience.look)
        if process.returncode is not None:
            log.error("the engine has ended with code %s", process.returncode)
        await self.stop()
        return up_since is not None and loop.time() - up_since > STEADY_SECONDS

    async def _answered(self) -> bool:
        try:
            await self._ask()
        except WorkerUnreachable as err:
            self._why = str(err)
            return False
        return True

    async def stop(self) -> None:
        """All of its processes. Stopping twice is stopping once."""
        process, self._process = self._process, None
        self.life.move(False)
        if process is None:
            return
        if process.returncode is None:
            _signal(process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), self._patience.stop)
        # Also where the first has ended by itself: some of its children may live on.
        _signal(process.pid, signal.SIGKILL)
        await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
