"""Two worker processes, one for prefill and one for decode, and a caller that sends the same body to both."""

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.unit.workers.engine_server.conftest import Serve
from tests.unit.workers.engine_server.test_main import worker
from workers.engine.errors import ConfigInvalid
from workers.engine.tiny_checkpoint import build
from workers.engine_server.options import WorkerOptions

PROMPT = "The gateway knows which worker holds the blocks of a prompt. " * 8


@dataclass
class Pair:
    """The two, and what a gateway does with them."""

    session: aiohttp.ClientSession
    prefill: str
    decode: str
    port: int
    processes: dict[str, Any]

    async def post(self, url: str, body: dict[str, Any], path: str = "/v1/completions") -> dict[str, Any]:
        async with self.session.post(url + path, json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            return answer

    def meeting(self) -> dict[str, Any]:
        room = secrets.randbits(63)
        return {"bootstrap_host": "127.0.0.1", "bootstrap_port": self.port, "bootstrap_room": room}

    async def ask(self, body: dict[str, Any], path: str = "/v1/completions") -> dict[str, Any]:
        """The decode worker's answer."""
        body = {**self.meeting(), **body}
        _, decoded = await asyncio.gather(
            self.post(self.prefill, body, path), self.post(self.decode, body, path)
        )
        return decoded

    async def counts(self, url: str) -> dict[str, Any]:
        async with self.session.get(f"{url}/v1/loads") as response:
            (loads,) = (await response.json())["loads"]
        return loads

    async def until_idle(self, *urls: str) -> None:
        async with asyncio.timeout(60):
            for url in urls or (self.prefill, self.decode):
                while (await self.counts(url))["num_used_tokens"]:
                    await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(
        tmp_path_factory.mktemp("pd") / "tiny",
        hidden=64,
        layers=2,
        heads=4,
        kv_heads=2,
        intermediate=96,
        vocab=512,
        context=8192,
        init=0.3,
    )


@asynccontextmanager
async def pair(model: Path, backend: str, *more: str) -> AsyncIterator[Pair]:
    common = ("--seed", "0", "--kv-tokens", "16384", *more)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        prefill = ("--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "0")
        decode = ("--disaggregation-mode", "decode", "--disaggregation-transfer-backend", backend)
        one, other = await asyncio.gather(
            enter(worker(model, *common, *prefill)), enter(worker(model, *common, *decode))
        )
        session = await enter(aiohttp.ClientSession())
        async with session.get(f"{one[1]}/server_info") as response:
            info = await response.json()
        assert info["disaggregation_mode"] == "prefill"
        yield Pair(
            session=session,
            prefill=one[1],
            decode=other[1],
            port=info["disaggregation_bootstrap_port"],
            processes={"prefill": one[0], "decode": other[0]},
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair_of_module(request: pytest.FixtureRequest, talker: Path) -> AsyncIterator[Pair]:
    """A pair that no test kills; the parameter is the way in which it moves blocks."""
    async with pair(talker, request.param) as halves:
        yield halves


async def emptied(halves: Pair) -> dict[str, dict[str, Any]]:
    """Empty the caches of both halves, and return what each has counted so far, by its URL."""
    urls = (halves.prefill, halves.decode)
    for url in urls:
        async with halves.session.post(f"{url}/flush_cache") as response:
            assert response.status == 200
    return {url: (await halves.counts(url))["disaggregation"] for url in urls}


def more(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """By how much counts have grown."""
    return {name: now[name] - before[name] for name in now if isinstance(now[name], int)}


BODIES: list[dict[str, Any]] = [
    {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "ignore_eos": True},
    {"prompt": PROMPT + "More.", "max_tokens": 40, "temperature": 1, "seed": 7, "ignore_eos": True},
    {"prompt": "Hi", "max_tokens": 20, "temperature": 0.7, "seed": 8, "ignore_eos": True},
]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("pair_of_module", ["tcp", "shm"], indirect=True)
async def test_two_processes_answer_as_one_does(pair_of_module: Pair, talker: Path, serving: Serve) -> None:
    async with serving(model=talker, seed=0) as single:
        wanted = [(await single.post("/v1/completions", body))[1]["choices"] for body in BODIES]
    halves = pair_of_module
    before = await emptied(halves)
    got = await asyncio.gather(*(halves.ask(body) for body in BODIES))
    assert wanted == [answer["choices"] for answer in got]
    decoded = (await halves.counts(halves.decode))["disaggregation"]
    taken = more(decoded, before[halves.decode])
    given = more((await halves.counts(halves.prefill))["disaggregation"], before[halves.prefill])
    assert (taken["pulled"], taken["recomputed"], given["handoffs"]) == (3, 0, 3)
    assert given["bytes"] == taken["bytes"] > 0
    await halves.until_idle()
    # Both sides keep what they have computed or fetched: the second time only the rest of a block travels.
    again = await halves.ask(BODIES[0])
    assert again["choices"] == wanted[0]
    assert (await halves.counts(halves.decode))["disaggregation"]["blocks"] - decoded["blocks"] == 1
    await halves.until_idle()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("pair_of_module", ["tcp"], indirect=True)
async def test_choices_chats_and_streams_are_handed_over_too(
    pair_of_module: Pair, talker: Path, serving: Serve
) -> None:
    chat = {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 12,
        "seed": 3,
        "ignore_eos": True,
    }
    several = {"prompt": PROMPT, "max_tokens": 12, "n": 3, "seed": 5, "ignore_eos": True}
    async with serving(model=talker, seed=0) as single:
        wanted_chat = (await single.post("/v1/chat/completions", chat))[1]["choices"]
        wanted_several = (await single.post("/v1/completions", several))[1]["choices"]
    halves = pair_of_module
    before = await emptied(halves)
    got = await halves.ask(chat, "/v1/chat/completions")
    assert got["choices"] == wanted_chat
    lists = {
        "bootstrap_host": ["127.0.0.1"] * 3,
        "bootstrap_port": [halves.port] * 3,
        "bootstrap_room": [secrets.randbits(63) for _ in range(3)],
    }
    assert (await halves.ask(several | lists))["choices"] == wanted_several
    body = {**chat, **halves.meeting(), "stream": True, "stream_options": {"include_usage": True}}
    prefilling = asyncio.create_task(halves.session.post(halves.prefill + "/v1/chat/completions", json=body))
    async with halves.session.post(halves.decode + "/v1/chat/completions", json=body) as response:
        frames = (await response.text()).split("\n\n")
    (await prefilling).close()
    assert frames[-2] == "data: [DONE]"
    assert '"completion_tokens":12' in frames[-3]
    taken = more((await halves.counts(halves.decode))["disaggregation"], before[halves.decode])
    assert (taken["pulled"], taken["recomputed"]) == (5, 0)
    await halves.until_idle()


async def test_a_prefill_worker_that_is_killed_costs_a_recomputation_and_nothing_else(
    talker: Path, serving: Serve
) -> None:
    long = {**BODIES[0], "prompt": PROMPT * 5}
    async with serving(model=talker, seed=0) as single:
        wanted = (await single.post("/v1/completions", long))[1]["choices"]
    # Four tokens a step: the prefill takes long enough to be caught in the middle.
    async with pair(talker, "shm", "--chunk-tokens", "4") as halves:
        body = {**long, **halves.meeting()}
        decoding = asyncio.create_task(halves.post(halves.decode, body))
        prefilling = asyncio.create_task(halves.post(halves.prefill, body))
        async with asyncio.timeout(60):
            while not (await halves.counts(halves.prefill))["num_running_reqs"]:
                await asyncio.sleep(0.005)
        halves.processes["prefill"].send_signal(signal.SIGKILL)
        assert isinstance((await asyncio.gather(prefilling, return_exceptions=True))[0], aiohttp.ClientError)
        assert (await decoding)["choices"] == wanted
        taken = (await halves.counts(halves.decode))["disaggregation"]
        assert (taken["pulled"], taken["recomputed"]) == (0, 1)
        await halves.until_idle(halves.decode)


async def test_a_decode_worker_that_is_killed_leaves_no_block_behind(talker: Path) -> None:
    async with pair(talker, "shm", "--chunk-tokens", "4") as halves:
        body = {**BODIES[0], "prompt": PROMPT * 5, **halves.meeting()}
        decoding = asyncio.create_task(halves.post(halves.decode, body))
        prefilling = asyncio.create_task(halves.post(halves.prefill, body))
        async with asyncio.timeout(60):
            while not (await halves.counts(halves.prefill))["num_running_reqs"]:
                await asyncio.sleep(0.005)
        # It has asked already, or will never: in the second case the lease has to time out.
        await asyncio.sleep(0.1)
        halves.processes["decode"].kill()
        answer = await prefilling
        assert answer["choices"][0]["finish_reason"] == "length"
        assert isinstance((await asyncio.gather(decoding, return_exceptions=True))[0], aiohttp.ClientError)
        async with asyncio.timeout(40):
            while (await halves.counts(halves.prefill))["num_used_tokens"]:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"bootstrap_room": 1}, "bootstrap_host"),
        ({"bootstrap_room": -1, "bootstrap_host": "h"}, "bootstrap_room"),
        ({"bootstrap_room": 2**63, "bootstrap_host": "h"}, "bootstrap_room"),
        ({"bootstrap_room": "x", "bootstrap_host": "h"}, "bootstrap_room"),
        ({"bootstrap_room": 1, "bootstrap_host": "h", "bootstrap_port": 0}, "bootstrap_port"),
        ({"bootstrap_room": [1], "bootstrap_host": "h", "n": 2}, "bootstrap_room"),
        ({"bootstrap_room": 1, "bootstrap_host": "h", "n": 2}, "bootstrap_room"),
        ({"bootstrap_room": [1, 2], "bootstrap_host": ["h"], "n": 2}, "bootstrap_host"),
    ],
)
async def test_a_meeting_place_that_cannot_be_is_a_400(
    fields: dict[str, Any], param: str, serving: Serve
) -> None:
    async with serving() as client:
        status, answer = await client.post("/v1/completions", {"prompt": "a", **fields})
    assert (status, answer["error"]["param"]) == (400, param)


async def test_a_room_that_is_taken_is_a_400(talker: Path, serving: Serve) -> None:
    mode = {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 0}
    async with serving(model=talker, chunk_tokens=1, **mode) as client:
        body = {"prompt": PROMPT, "bootstrap_host": "127.0.0.1", "bootstrap_room": 5}
        first = asyncio.create_task(client.post("/v1/completions", body))
        await client.until(num_running_reqs=1)
        status, answer = await client.post("/v1/completions", body)
        assert (status, answer["error"]["param"]) == (400, "bootstrap_room")
        assert (await first)[0] == 200


def test_a_worker_without_kv_is_no_half_of_a_pair(talker: Path) -> None:
    with pytest.raises(ConfigInvalid, match="nothing to hand over"):
        WorkerOptions(model=talker, disaggregation_mode="prefill", kv_layout="none")


@pytest.mark.parametrize(
    "field", ["disaggregation_mode", "disaggregation_transfer_backend", "disaggregation_bootstrap_port"]
)
def test_an_unknown_way_to_hand_over_is_refused(field: str, talker: Path) -> None:
    options: dict[str, Any] = {field: 70_000 if field.endswith("port") else "pigeon"}
    with pytest.raises(ConfigInvalid, match=field):
        WorkerOptions(model=talker, **options)


@pytest.mark.parametrize("other", [{"quantization": "int8"}, {"dtype": "bfloat16"}])
async def test_halves_that_hold_their_weights_differently_exchange_no_blocks(
    other: dict[str, Any], talker: Path, serving: Serve
) -> None:
    # The blocks would fit, for they are in INT8 on both sides. But they hold what another model computed.
    common = {"model": talker, "kv_cache_dtype": "int8", "seed": 0, **other}
    async with serving(**common) as one:
        _, wanted = await one.post("/v1/completions", BODIES[0])
    giving = {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 0}
    async with (
        serving(**{**common, **giving, "quantization": "none", "dtype": "float32"}) as prefill,
        serving(**common, disaggregation_mode="decode") as decode,
    ):
        _, info = await prefill.get("/server_info")
        port = info["disaggregation_bootstrap_port"]
        meeting = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": 1}
        sent = asyncio.create_task(prefill.post("/v1/completions", BODIES[0] | meeting))
        _, got = await decode.post("/v1/completions", BODIES[0] | meeting)
        assert (await sent)[0] == 200
        assert got["choices"] == wanted["choices"]
        assert (await decode.loads())["disaggregation"]["recomputed"] == 1


async def test_without_a_room_each_half_serves_alone(talker: Path, serving: Serve) -> None:
    for mode in ("prefill", "decode"):
        async with serving(
            model=talker, disaggregation_mode=mode, disaggregation_bootstrap_port=0, seed=0
        ) as client:
            status, answer = await client.post("/v1/completions", BODIES[0])
            assert (status, answer["usage"]["completion_tokens"]) == (200, 40)
            await client.until_idle()
