"""The clients: sessions of several tenants whose prompts share beginnings, behind a load balancer.

The balancer asks each gateway whether it is ready and sends requests to the ready gateways in turn; where a
connection is refused it takes another gateway. Requests of a killed gateway are lost with it: before their first
byte they are sent once more, to another gateway, and counted separately.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
import orjson

from tests.chaos.scene import MODEL, TENANTS, Scene
from tests.stage.processes import GatewayProcess
from workers.engine.tiny_text import sentences

SESSIONS = 12
THINK_SECONDS_MAX = 0.3
SYSTEM_SENTENCES = 12
TURNS_MAX = 4
REQUEST_SECONDS_MAX = 60.0
CHECK_SECONDS = 0.2


@dataclass(slots=True)
class Tally:
    """What the clients saw during one fault."""

    requests: int = 0
    answered: int = 0
    failed: list[str] = field(default_factory=list)
    """The errors of requests that failed before their first byte."""
    cut: int = 0
    """Streams that ended early, with an error frame."""
    silent: list[str] = field(default_factory=list)
    """The errors of streams that ended early without an error frame."""
    excused: int = 0
    """Streams that ended because their gateway was killed."""
    retried: int = 0
    """Requests that were sent once more because their gateway was killed."""
    refused_connections: int = 0
    tokens: int = 0
    """Prompt and output tokens of answered requests."""
    under_way: int = 0
    """Requests that have not ended yet."""
    ttft: list[float] = field(default_factory=list)
    """Seconds to the first byte, of each request that had one."""

    def quantile(self, share: float) -> float:
        """Return this quantile of the times to the first byte, in milliseconds."""
        ordered = sorted(self.ttft)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 if ordered else 0.0


class Refused(Exception):
    """The connection was refused: nothing was sent."""


class Lost(Exception):
    """The connection ended before the first byte of an answer."""


class Balancer:
    """A load balancer that follows the readiness of the gateways."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._ready = {gateway.name: True for gateway in scene.gateways}
        self._turn = 0

    def pick(self, without: set[str]) -> GatewayProcess:
        """Return the next ready gateway, none of the names in `without` if possible."""
        gateways = self._scene.gateways
        self._turn += 1
        order = [gateways[(self._turn + at) % len(gateways)] for at in range(len(gateways))]
        # As balancers do: where no gateway is ready, any of them is tried.
        for usable in (self._usable(without), lambda gateway: gateway.name not in without):
            for gateway in order:
                if usable(gateway):
                    return gateway
        return order[0]

    async def watch(self) -> None:
        """Ask for the readiness of all gateways until cancelled."""
        await asyncio.gather(*(self._watch(gateway) for gateway in self._scene.gateways))

    def _usable(self, without: set[str]) -> Callable[[GatewayProcess], bool]:
        return lambda gateway: gateway.name not in without and self._ready[gateway.name]

    async def _watch(self, gateway: GatewayProcess) -> None:
        while True:
            try:
                state = await gateway.readiness(self._scene.http)
                self._ready[gateway.name] = state["ready"]
            except (aiohttp.ClientError, TimeoutError):
                self._ready[gateway.name] = False
            await asyncio.sleep(CHECK_SECONDS)


class Load:
    """The running sessions: `async with Load(scene, tally, seed)`. At the end every request runs to its end."""

    def __init__(self, scene: Scene, tally: Tally, seed: int) -> None:
        self._scene = scene
        self._tally = tally
        self._seed = seed
        self._balancer = Balancer(scene)
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False

    async def __aenter__(self) -> "Load":
        self._http = aiohttp.ClientSession(
            # A connection for each request: an idle one may be closed in the moment in which it is used.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX),
        )
        self._watch = asyncio.create_task(self._balancer.watch())
        self._tasks = [asyncio.create_task(self._session(number)) for number in range(SESSIONS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)
        self._watch.cancel()
        with suppress(asyncio.CancelledError):
            await self._watch
        await self._http.close()

    async def _session(self, number: int) -> None:
        chance = Random(self._seed * 1000 + number)
        tenant = TENANTS[number % len(TENANTS)]
        while not self._over:
            messages = [{"role": "system", "content": _text(TENANTS.index(tenant), SYSTEM_SENTENCES)}]
            for _ in range(chance.randint(1, TURNS_MAX)):
                if self._over:
                    return
                messages.append(
                    {"role": "user", "content": _text(chance.getrandbits(32), chance.randint(1, 3))}
                )
                said = await self._ask(
                    tenant, messages, stream=chance.random() < 0.7, tokens=chance.randint(4, 24)
                )
                messages.append({"role": "assistant", "content": said or "nothing"})
                await asyncio.sleep(chance.uniform(0, THINK_SECONDS_MAX))

    async def _ask(self, tenant: str, messages: list[dict[str, str]], *, stream: bool, tokens: int) -> str:
        """Send one request to any gateway that takes it, and return the text of the answer; "" if it failed."""
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": messages,
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        tally, tried = self._tally, set[str]()
        tally.requests += 1
        tally.under_way += 1
        started = time.perf_counter()
        try:
            while True:
                gateway = self._balancer.pick(tried)
                try:
                    return await self._send(gateway, tenant, body, started)
                except Refused:
                    tally.refused_connections += 1
                except Lost as err:
                    if gateway.name not in self._scene.gone:
                        tally.failed.append(f"{gateway.name}: {err}")
                        return ""
                    tally.retried += 1
                tried.add(gateway.name)
                if len(tried) == len(self._scene.gateways):
                    tally.failed.append("no gateway takes a connection")
                    return ""
        finally:
            tally.under_way -= 1

    async def _send(self, gateway: GatewayProcess, tenant: str, body: dict[str, Any], started: float) -> str:
        """Send one request to this gateway and return the text of the answer. Raises Refused and Lost."""
        tally = self._tally
        url = f"http://{gateway.host}:{gateway.port}/v1/chat/completions"
        headers = {"Authorization": f"Bearer {self._scene.keys[tenant].text}"}
        begun = False
        try:
            async with self._http.post(url, json=body, headers=headers) as answer:
                if answer.status != 200:
                    tally.failed.append(f"{answer.status} {(await answer.text())[:200]}")
                    return ""
                frames: list[Any] = []
                done = not body.get("stream")
                async for line in answer.content:
                    if not begun:
                        begun = True
                        tally.ttft.append(time.perf_counter() - started)
                    if done and not body.get("stream"):
                        frames.append(orjson.loads(line))
                    elif line.startswith(b"data: {"):
                        frames.append(orjson.loads(line[6:]))
                    elif line.startswith(b"data: [DONE]"):
                        done = True
        except aiohttp.ClientConnectorError as err:
            raise Refused from err
        except (aiohttp.ClientError, TimeoutError) as err:
            if not begun:
                raise Lost(f"{type(err).__name__}: {err}") from err
            if gateway.name in self._scene.gone:
                tally.excused += 1
            else:
                tally.silent.append(f"{gateway.name}: {type(err).__name__}: {err}")
            return ""
        return self._read(frames, done=done)

    def _read(self, frames: list[Any], *, done: bool) -> str:
        tally = self._tally
        if frames and "error" in frames[-1]:
            tally.cut += 1
            return ""
        if not done or not frames:
            tally.silent.append("the stream ended without [DONE] and without an error")
            return ""
        tally.answered += 1
        tally.tokens += frames[-1]["usage"]["prompt_tokens"] + frames[-1]["usage"]["completion_tokens"]
        choices = [choice for frame in frames for choice in frame["choices"]]
        return "".join((c.get("delta") or c.get("message") or {}).get("content") or "" for c in choices)


def _text(seed: int, count: int) -> str:
    return " ".join(sentences(seed, count))
