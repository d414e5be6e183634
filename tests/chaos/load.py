"""The clients: sessions of several tenants that share beginnings of prompts, behind a balancer.

The balancer asks each gateway whether it is ready, sends requests to those that are, in turn, and takes another one
where a connection is refused. A gateway that was killed takes its requests with it: before the first byte they are
sent once more, elsewhere, and counted apart.
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
    """What the clients of one fault saw. `failed`: before the first byte, by what was said. `silent`: streams that
    ended early and without an error frame. `retried`: sent once more, because their gateway was killed."""

    requests: int = 0
    answered: int = 0
    failed: list[str] = field(default_factory=list)
    cut: int = 0
    silent: list[str] = field(default_factory=list)
    excused: int = 0
    retried: int = 0
    refused_connections: int = 0
    tokens: int = 0
    under_way: int = 0
    ttft: list[float] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        """Milliseconds to the first byte."""
        ordered = sorted(self.ttft)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 if ordered else 0.0


class Refused(Exception):
    """Nobody listens: nothing was sent."""


class Lost(Exception):
    """The connection ended before the first byte of an answer."""


class Balancer:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._ready = {gateway.name: True for gateway in scene.gateways}
        self._turn = 0

    def pick(self, without: set[str]) -> GatewayProcess:
        gateways = self._scene.gateways
        self._turn += 1
        order = [gateways[(self._turn + at) % len(gateways)] for at in range(len(gateways))]
        # As balancers do: where none is said to be ready, any is tried.
        for usable in (self._usable(without), lambda gateway: gateway.name not in without):
            for gateway in order:
                if usable(gateway):
                    return gateway
        return order[0]

    async def watch(self) -> None:
        """Asks for as long as it is not cancelled."""
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
    """`async with Load(scene, tally):` sessions run inside; on leaving, every request runs to its end."""

    def __init__(self, scene: Scene, tally: Tally, seed: int) -> None:
        self._scene = scene
        self._tally = tally
        self._seed = seed
        self._balancer = Balancer(scene)
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False

    async def __aenter__(self) -> "Load":
        self._http = aiohttp.ClientSession(
            # A connection for each request: one that was idle may be closed in the moment in which it is used.
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
        """One request, wherever it may go. What was said; empty if nothing was."""
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
        """Raises Refused and Lost."""
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
