"""The measured programs, each in a process of its own before two workers (one process, two ports).

direct              the worker itself
radixgate           policies and quotas on, real Valkey; `tokenizer: text`
radixgate-asking    the same process; a tenant without quota in escrow: every request waits for Valkey
radixgate-tokens    the same process; a model with a tokenizer directory
radixgate-envoy     the same process; a real Envoy with one thread carries the bytes, and asks it for the worker
radixgate-processes the gateway as on a machine of its own: `serve --processes N`, one process for each core
smg                 smg launch --policy cache_aware, with a tenant key
aiohttp             bare_relay.py: no policies, the lower bound for a gateway in Python
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import yaml

from gateway.demo.demo_processes import free_port
from gateway.process.children import Child, ChildFailed
from gateway.process.secrets import deployment_secret
from gateway.settings.tree import Settings
from gateway.tenants.keys import NewKey, new_key, pepper
from tests.stage.envoy import PROGRAM, Envoy

DIRECT, RADIXGATE, ASKING, TOKENS = "direct", "radixgate", "radixgate-asking", "radixgate-tokens"
ENVOY, PROCESSES = "radixgate-envoy", "radixgate-processes"
SMG, AIOHTTP = "smg", "aiohttp"
SUBJECTS = (DIRECT, RADIXGATE, ASKING, TOKENS, ENVOY, PROCESSES, SMG, AIOHTTP)

TEXT_MODEL, TOKENS_MODEL = "bench-text", "bench-tokens"
READY = re.compile(r"ready at (\S+)")
_SHIPPED = re.compile(r"^radixgate_usage_shipped_total(?:\{.*\})? (\S+)", re.MULTILINE)
START_SECONDS_MAX = 60.0
INSTALL_SECONDS_MAX = 300.0

SMG_VERSION = "1.13.0"
SMG_HOME = Path(".tools/smg-venv")
SMG_READY = re.compile(r"listening\s+(\S+)")

LIMITS = [{"requests": 1_000_000_000, "per": "minute"}, {"total_tokens": 10_000_000_000, "per": "minute"}]
COUNTED_ONLY = {"requests": 1, "per": "minute", "mode": "soft"}
"""A limit that is used up and refuses no request."""
CONCURRENCY = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A measured program: its address, the key and model to use, and the process whose CPU time counts."""

    name: str
    host: str
    port: int
    model: str
    key: str
    pid: int
    envoy_pid: int | None = None
    """The process of the Envoy before it, whose CPU time counts too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """All running programs, the operator addresses of the gateways, and notes on programs that do not run."""

    subjects: Sequence[Subject]
    notes: Sequence[str]
    admin_urls: Sequence[str]


@asynccontextmanager
async def running(
    wanted: Sequence[str],
    directory: Path,
    *,
    profiled: Path | None = None,
    more: Mapping[str, object] | None = None,
) -> AsyncIterator[Field]:
    """Start the worker and the wanted programs, and stop them. Raises ChildFailed for all but smg.

    `profiled`: where the gateway leaves profiles of itself, see profiled_gateway.py. `more`: settings of the
    gateway beside or in place of the usual ones.
    """
    key, asking = _new_keys(directory)
    children: list[Child] = []
    found: dict[str, Subject] = {}
    notes: list[str] = []
    carriers = AsyncExitStack()

    async def start(name: str, ready: "re.Pattern[str]", *command: str) -> Child:
        child = Child(name, lambda _: command, ready, directory / f"{name}.log")
        children.append(child)
        await child.start(START_SECONDS_MAX)
        return child

    def subject(name: str, child: Child, model: str = TEXT_MODEL, key: NewKey = key) -> Subject:
        assert child.pid is not None
        at = urlsplit(f"//{str(child.url).partition(',')[0].rpartition('//')[2]}")
        return Subject(
            name=name,
            host=at.hostname or "",
            port=at.port or 0,
            model=model,
            key=key.text,
            pid=child.pid,
        )

    try:
        worker = await start(
            "worker", READY, *_module("tests.benchmarks.fast_worker"), TEXT_MODEL, TOKENS_MODEL
        )
        urls = str(worker.url).split(",")
        found[DIRECT] = subject(DIRECT, worker)
        admin_ports: list[int] = []
        checkpoint = directory / "checkpoint"
        if {RADIXGATE, ASKING, TOKENS, ENVOY, PROCESSES} & set(wanted):
            await _make_checkpoint(checkpoint)
        if {RADIXGATE, ASKING, TOKENS, ENVOY} & set(wanted):
            admin_ports.append(free_port(0))
            config = directory / "gateway.yaml"
            picker_port = free_port(0)
            envoy = Envoy(directory, picker_port) if PROGRAM.exists() else None
            settings = {
                **_settings(directory, urls, (key, asking), admin_ports[-1], checkpoint),
                **(_picker(picker_port) if ENVOY in wanted and envoy is not None else {}),
                **(more if more is not None else {}),
            }
            if profiled is not None:
                # A profiler slows every call: within the usual 50 ms, Redis would seem to have failed.
                settings["redis"] = {"url": "embedded", "timeout_ms": 10_000}
            config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
            program = _module("gateway")
            if profiled is not None:
                program = (*_module("tests.benchmarks.profiled_gateway"), str(profiled))
            gateway = await start(RADIXGATE, READY, *program, "serve", "--config", str(config))
            found[RADIXGATE] = subject(RADIXGATE, gateway)
            found[ASKING] = subject(ASKING, gateway, key=asking)
            found[TOKENS] = subject(TOKENS, gateway, TOKENS_MODEL)
            if ENVOY in wanted and envoy is None:
                notes.append(f"without {ENVOY}: there is no Envoy; `make test-envoy` installs one")
            elif ENVOY in wanted:
                try:
                    await carriers.enter_async_context(envoy)
                    found[ENVOY] = replace(found[RADIXGATE], name=ENVOY, port=envoy.port, envoy_pid=envoy.pid)
                except (OSError, TimeoutError, AssertionError) as err:
                    notes.append(f"without {ENVOY}: Envoy does not start: {err}")
        if PROCESSES in wanted:
            state, cores = directory / PROCESSES, len(os.sched_getaffinity(0))
            state.mkdir()
            keys = _new_keys(state)
            admin_ports.append(free_port(0))
            config = state / "gateway.yaml"
            settings = _settings(state, urls, keys, admin_ports[-1], checkpoint)
            config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
            options = ["serve", "--config", str(config), "--processes", str(cores)]
            several = await start(PROCESSES, READY, *_module("gateway"), *options)
            found[PROCESSES] = subject(PROCESSES, several, key=keys[0])
        if SMG in wanted:
            try:
                program = await _smg()
                options = _smg_options(urls, key)
                found[SMG] = subject(SMG, await start(SMG, SMG_READY, str(program), "launch", *options))
            except (ChildFailed, OSError) as err:
                notes.append(f"without smg: {err}")
        if AIOHTTP in wanted:
            relay = await start(AIOHTTP, READY, *_module("tests.benchmarks.bare_relay"), urls[0])
            found[AIOHTTP] = subject(AIOHTTP, relay)
        subjects = [found[name] for name in SUBJECTS if name in found and name in wanted]
        for one in subjects:
            await _serving(one)
        admin_urls = [f"http://127.0.0.1:{port}" for port in admin_ports]
        for url in admin_urls:
            await _storing_usage(url)
        yield Field(subjects=subjects, notes=notes, admin_urls=admin_urls)
    finally:
        await carriers.aclose()
        await asyncio.gather(*(child.stop() for child in reversed(children)))


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process and its descendants so far; 0 off Linux."""
    ticks, parents = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # The process has just ended.
        number = int(entry.parent.name)
        parents[number] = int(fields[1])
        ticks[number] = sum(map(int, fields[11:15]))

    def below(number: int) -> bool:
        while number not in (0, pid):
            number = parents.get(number, 0)
        return number == pid

    return sum(spent for number, spent in ticks.items() if below(number)) / os.sysconf("SC_CLK_TCK")


async def _make_checkpoint(directory: Path) -> None:
    """Build a tiny checkpoint with a real tokenizer, in a process of its own: a gateway has no numpy."""
    await run_to_its_end("the checkpoint", *_module("workers.engine.tiny_checkpoint"), str(directory))


async def _smg() -> Path:
    """Return the smg program, which is installed if needed. Raises ChildFailed."""
    program = SMG_HOME / "bin" / "smg"
    if not program.exists():
        await run_to_its_end("smg's environment", sys.executable, "-m", "venv", str(SMG_HOME))
        await run_to_its_end(
            "smg", str(SMG_HOME / "bin" / "pip"), "install", "--quiet", f"smg=={SMG_VERSION}"
        )
    return program


async def run_to_its_end(name: str, *command: str) -> None:
    """Run the command to its end. Raises ChildFailed."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, errors = await asyncio.wait_for(process.communicate(), INSTALL_SECONDS_MAX)
    except TimeoutError:
        process.kill()
        raise ChildFailed(f"{name} is not there after {INSTALL_SECONDS_MAX:g} seconds") from None
    if process.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise ChildFailed(f"{name} could not be made: {' '.join(last)}")


async def _serving(subject: Subject) -> None:
    """Wait until the program answers: a router may be ready before it knows its worker. Raises ChildFailed."""
    body = {"model": subject.model, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"authorization": f"Bearer {subject.key}"}
    url = f"http://{subject.host}:{subject.port}/v1/chat/completions"
    try:
        async with asyncio.timeout(START_SECONDS_MAX), aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.post(url, json=body, headers=headers) as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise ChildFailed(f"{subject.name} does not answer") from None


async def _storing_usage(admin_url: str) -> None:
    """Wait until a gateway has stored the usage of a request. Raises ChildFailed.

    It makes the tables of a new state directory before the first one, and is slower for that time.
    """
    try:
        async with asyncio.timeout(START_SECONDS_MAX), aiohttp.ClientSession() as http:
            while True:
                async with http.get(f"{admin_url}/metrics") as answer:
                    text = await answer.text()
                if sum(map(float, _SHIPPED.findall(text))):
                    return
                await asyncio.sleep(0.1)
    except (TimeoutError, aiohttp.ClientError) as err:
        raise ChildFailed("the gateway stores no usage") from err


def _new_keys(state_directory: Path) -> tuple[NewKey, NewKey]:
    """Return two new keys for the gateway with this state directory."""
    secret = pepper(deployment_secret(Settings(state_directory=str(state_directory))))
    return new_key(secret), new_key(secret)


def _module(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name)


def _settings(
    directory: Path, urls: Sequence[str], keys: tuple[NewKey, NewKey], admin_port: int, checkpoint: Path
) -> dict[str, object]:
    """Return settings with everything on that refuse no request."""
    return {
        "listen": {"port": 0},
        "admin": {"port": admin_port},
        "redis": {"url": "embedded"},
        "state_directory": str(directory),
        "models": [
            {"name": TEXT_MODEL, "tokenizer": "text"},
            {"name": TOKENS_MODEL, "tokenizer": str(checkpoint)},
        ],
        "workers": [{"id": f"fast-{at}", "kind": "sglang", "url": url} for at, url in enumerate(urls)],
        "plans": [
            {"name": name, "limits": limits, "concurrency": CONCURRENCY}
            for name, limits in (("bench", LIMITS), ("asking", [*LIMITS, COUNTED_ONLY]))
        ],
        "tenants": [
            {"id": name, "plan": name, "keys": [{"id": key.id, "hash": key.hash}]}
            for name, key in zip(("bench", "asking"), keys, strict=True)
        ],
        "routing": {"policy": "cost"},
        "drain": {"notice_seconds": 0, "seconds": 1},
    }


def _picker(port: int) -> dict[str, object]:
    return {"listen": {"port": 0, "endpoint_picker": {"port": port}}}


def _smg_options(urls: Sequence[str], key: NewKey) -> list[str]:
    options = {
        "policy": "cache_aware",
        "host": "127.0.0.1",
        "port": free_port(0),
        "prometheus-host": "127.0.0.1",
        "prometheus-port": free_port(0),
        "tenant-api-key": f"bench:{key.text}",
        "log-level": "warn",
    }
    given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return ["--worker-urls", *urls, *given, "--disable-tokenizer-autoload"]
