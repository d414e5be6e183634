"""Prefill here, decode there, within one process: same tokens, and whatever fails, no block is lost."""

import asyncio
import json
import os
import random
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.workers.engine.conftest import Answer, finish_all
from workers.engine.async_engine import AsyncEngine
from workers.engine.disaggregation import channel
from workers.engine.disaggregation.decode import DecodeSide, _Pull, connect
from workers.engine.disaggregation.handoff import HandoffFailed, HandoffLeases, HeldPrompt, LeaseState
from workers.engine.disaggregation.messages import (
    Manifest,
    fingerprint,
    receive_as,
    receive_frame,
    send_frame,
)
from workers.engine.disaggregation.prefill import PrefillServer, PrefillSide
from workers.engine.engine import Engine
from workers.engine.errors import EngineFailed, RequestRefused
from workers.engine.request import Bootstrap, Request
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.plan import SampledTokens
from workers.engine.scheduler.sequence import Sequence

LENGTHS = (1, 2, 15, 16, 17, 40, 90)


def params(seed: int | None = None, max_tokens: int = 20) -> SamplingParams:
    temperature = 0.0 if seed is None else 1.0
    return SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed, ignore_eos=True)


def prompt(length: int) -> list[int]:
    chance = random.Random(length)
    return [chance.randrange(4, 500) for _ in range(length)]


class Pair:
    """A prefill engine and a decode engine; `ask` is what a gateway does."""

    def __init__(self, given: AsyncEngine, taken: AsyncEngine, **parts: Any) -> None:
        self.given, self.taken = given, taken
        self.give: Engine = parts["give"]
        self.take: Engine = parts["take"]
        self.leases: HandoffLeases = parts["leases"]
        self.server: PrefillServer = parts["server"]
        self.side: DecodeSide = parts["side"]
        self.port: int = parts["port"]
        self.rooms = 0

    def request(
        self, tokens: list[int], how: SamplingParams, room: int | None = None, **more: Any
    ) -> Request:
        if room is None:
            self.rooms += 1
            room = self.rooms
        bootstrap = Bootstrap(host="127.0.0.1", port=self.port, room=room)
        return Request(id=f"r{room}", prompt=tokens, params=how, bootstrap=bootstrap, **more)

    async def ask(self, tokens: list[int], how: SamplingParams, **more: Any) -> tuple[Answer, Answer]:
        """What both sides answer."""
        request = self.request(tokens, how, **more)
        prefilled, decoded = await asyncio.gather(read(self.given, request), read(self.taken, request))
        return prefilled, decoded

    async def until_idle(self) -> None:
        """Every block is back, on both sides."""
        async with asyncio.timeout(60):
            for engine in (self.give, self.take):
                while engine.has_work or engine.scheduler.held_for_handoff or engine.scheduler.receiving:
                    await asyncio.sleep(0.01)
            while len(self.leases) or self.side.states():
                await asyncio.sleep(0.01)
        for engine in (self.give, self.take):
            assert engine.tree.available_blocks == engine.tree.pool.capacity
            engine.tree.check()


async def read(engine: AsyncEngine, request: Request) -> Answer:
    answer = Answer()
    async with await engine.submit(request) as outputs:
        async for output in outputs:
            answer.add(output)
    return answer


Paired = Callable[..., Any]


@pytest.fixture
def paired(load: Callable[..., Engine], checkpoint: Callable[[str], Path]) -> Paired:
    @asynccontextmanager
    async def start(
        backend: Any = "tcp",
        fault: Callable[[str], None] = lambda _: None,
        *,
        lease_seconds: float = 10.0,
        variant: str = "llama-gqa",
        decode: dict[str, Any] | None = None,
        connect: Callable[[str, int], socket.socket] = connect,
        name: str | None = None,
        **settings: Any,
    ) -> AsyncIterator[Pair]:
        give, take = load(variant, **settings), load(variant, **{**settings, **(decode or {})})
        async with AsyncEngine(give) as given, AsyncEngine(take) as taken:

            def let_go(request_id: str) -> None:
                given.call(lambda: give.scheduler.release_held(request_id) or [])  # type: ignore[func-returns-value]

            leases = HandoffLeases(let_go, seconds=lease_seconds)
            give.handoff_side = PrefillSide(give, leases)
            print_of = fingerprint(checkpoint(variant), quantization="none", dtype="float32")
            assert give.store
            server = PrefillServer(give.store, leases, fingerprint=print_of, peer_seconds=5, fault=fault)
            take.handoff_side = side = DecodeSide(
                take,
                taken.call,
                fingerprint=name or print_of,
                backend=backend,
                wait_seconds=5,
                connect=connect,
            )
            port = server.listen("127.0.0.1", 0)
            parts = {"give": give, "take": take, "leases": leases, "server": server, "side": side}
            try:
                yield Pair(given, taken, port=port, **parts)
            finally:
                side.close()
                server.close()

    return start


def alone(load: Callable[..., Engine], how: SamplingParams, **settings: Any) -> list[list[int]]:
    engine = load(**settings)
    requests = [Request(id=str(n), prompt=prompt(n), params=how) for n in LENGTHS]
    return [answer.tokens for answer in finish_all(engine, requests).values()]


@pytest.mark.parametrize("backend", ["tcp", "shm"])
@pytest.mark.parametrize("seed", [None, 11], ids=["greedy", "sampled"])
@pytest.mark.parametrize("settings", [{}, {"block_size": 4}, {"kv_dtype": "int8"}], ids=["16", "4", "int8"])
async def test_two_engines_answer_as_one_does(
    backend: str,
    seed: int | None,
    settings: dict[str, Any],
    load: Callable[..., Engine],
    paired: Paired,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Small slabs, so that prompts travel in several.
    monkeypatch.setattr(channel, "SLAB_BYTES", 20_000)
    wanted = alone(load, params(seed), **settings)
    async with paired(backend, **settings) as pair:
        answers = await asyncio.gather(*(pair.ask(prompt(length), params(seed)) for length in LENGTHS))
        assert wanted == [decoded.tokens for _, decoded in answers]
        assert [tokens[:1] for tokens in wanted] == [prefilled.tokens for prefilled, _ in answers]
        assert (pair.side.counters.pulled, pair.side.counters.recomputed) == (len(LENGTHS), 0)
        assert pair.server.counters.bytes == pair.side.counters.bytes > 0
        await pair.until_idle()


async def test_the_first_token_brings_its_logprobs_along(load: Callable[..., Engine], paired: Paired) -> None:
    how = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True, logprobs=2)
    engine = load()
    engine.submit(Request(id="a", prompt=prompt(40), params=how))
    wanted: list[Any] = []
    while engine.has_work:
        wanted += [known for output in engine.step() for known in output.logprobs]
    async with paired() as pair:
        request = pair.request(prompt(40), how)
        got: list[Any] = []
        prefilling = asyncio.create_task(read(pair.given, request))
        async with await pair.taken.submit(request) as outputs:
            async for output in outputs:
                got += output.logprobs
        await prefilling
        assert pair.side.counters.pulled == 1
    assert [(k.token, [token for token, _ in k.top]) for k in wanted] == [
        (k.token, [token for token, _ in k.top]) for k in got
    ]
    assert [k.logprob for k in wanted] == pytest.approx([k.logprob for k in got], abs=1e-4)


async def test_only_the_missing_blocks_travel(paired: Paired) -> None:
    async with paired() as pair:
        first = await pair.ask(prompt(90), params())
        assert pair.side.counters.blocks == 6
        # The turn that follows: five blocks of it are in the decode side's own tree, answer included.
        longer = [*prompt(90), *first[1].tokens, *prompt(17)]
        _, second = await pair.ask(longer, params())
        assert pair.side.counters.blocks == 6 + (-(-127 // 16) - 109 // 16)
        assert second.cached_tokens == 80
        await pair.until_idle()


async def test_a_model_with_windows_sends_what_the_window_reaches(
    tmp_path: Path, load: Callable[..., Engine], paired: Paired, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.workers.engine import conftest

    shape = {"architecture": "mistral", "kv_heads": 2, "window": 24}
    monkeypatch.setitem(conftest.VARIANTS, "mistral-24", shape)
    wanted = alone(load, params(), variant="mistral-24", block_size=4)
    async with paired(variant="mistral-24", block_size=4) as pair:
        assert pair.give.tree.window == 24
        got = [(await pair.ask(prompt(length), params()))[1].tokens for length in LENGTHS]
        assert wanted == got
        assert pair.side.counters.recomputed == 0
        # Of 90 tokens blocks 16 to 22, of 40 blocks 4 to 9, and all of the shorter prompts.
        assert pair.side.counters.blocks == 1 + 1 + 4 + 4 + 5 + 6 + 7
        await pair.until_idle()


STAGES = ["asked", "ready", "slab", "sent"]


@pytest.mark.parametrize("backend", ["tcp", "shm"])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_prefill_side_that_breaks_at_any_stage_costs_a_recomputation_and_no_block(
    stage: str, backend: str, load: Callable[..., Engine], paired: Paired
) -> None:
    def fault(now: str) -> None:
        if now == stage:
            raise ConnectionResetError("injected")

    wanted = alone(load, params(3))
    async with paired(backend, fault) as pair:
        answers = await asyncio.gather(*(pair.ask(prompt(length), params(3)) for length in LENGTHS))
        assert wanted == [decoded.tokens for _, decoded in answers]
        taken = pair.side.counters
        # After the last block nothing is missing any more.
        assert taken.recomputed == (0 if stage == "sent" else len(LENGTHS))
        if stage == "asked":
            pair.leases._seconds = 0
            for room in pair.leases.states():
                pair.leases.abort(room, "the test ends the lease")
        await pair.until_idle()


@pytest.mark.parametrize("stage", ["never", *STAGES])
async def test_no_segment_of_shared_memory_is_left(
    stage: str, tmp_path: Path, paired: Paired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_SHARED", tmp_path)

    def fault(now: str) -> None:
        if now == stage:
            raise ConnectionResetError("injected")

    async with paired("shm", fault, lease_seconds=0.3) as pair:
        await pair.ask(prompt(90), params())
        await pair.until_idle()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["../etc/passwd", "radixgate-kv-", "radixgate-kv-" + "0" * 32, ""])
async def test_a_peer_cannot_have_other_files_mapped(
    name: str, tmp_path: Path, paired: Paired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_SHARED", tmp_path / "here")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / ("radixgate-kv-" + "0" * 32)).symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_bytes(b"x" * 100)
    async with paired() as pair:
        await read(pair.given, pair.request(prompt(40), params(), room=9))

        def attack() -> None:
            with connect("127.0.0.1", pair.port) as peer:
                ask = pair.side._request(
                    _Pull(sequence=waiting, bootstrap=Bootstrap(host="127.0.0.1", port=1, room=9))
                )
                send_frame(peer, replace(ask, backend="shm"))
                receive_as(peer, Manifest)
                send_frame(peer, {"segment": name})
                with pytest.raises(HandoffFailed, match="has left"):
                    receive_frame(peer)

        waiting = Sequence(
            id="x",
            order=1,
            tokens=prompt(40),
            num_prompt=40,
            params=params(),
            seed=0,
            salt="",
            stop_ids=frozenset(),
        )
        await asyncio.to_thread(attack)
        assert (tmp_path / "secret").read_bytes() == b"x" * 100
        await pair.until_idle()


@pytest.mark.parametrize(
    "noise", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2[]", b"\0\0\0\2{}", b"\0\0\0\3{x}"]
)
async def test_a_peer_with_another_protocol_is_disconnected(noise: bytes, paired: Paired) -> None:
    async with paired() as pair:

        def talk() -> bytes:
            with connect("127.0.0.1", pair.port) as peer:
                try:
                    peer.sendall(noise)
                    peer.shutdown(socket.SHUT_WR)
                    return peer.recv(100)
                except OSError:  # hung up on already: while we sent, shut down or listened
                    return b""

        assert await asyncio.to_thread(talk) == b""
        _, decoded = await pair.ask(prompt(40), params())
        assert (len(decoded.tokens), pair.side.counters.pulled) == (20, 1)


async def test_a_damaged_block_is_not_read(
    load: Callable[..., Engine], paired: Paired, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bent(channel.TcpSender):
        def send(self, content: Any) -> None:
            content[0, 5] ^= 1
            super().send(content)

    monkeypatch.setattr(channel, "TcpSender", Bent)
    wanted = alone(load, params())
    async with paired() as pair:
        got = [(await pair.ask(prompt(length), params()))[1].tokens for length in LENGTHS]
        assert wanted == got
        assert (pair.side.counters.pulled, pair.side.counters.recomputed) == (0, len(LENGTHS))
        await pair.until_idle()


@pytest.mark.parametrize(
    ("decode", "name"),
    [({"kv_dtype": "int8"}, None), ({"block_size": 8}, None), ({}, "another model")],
    ids=["codec", "block size", "model"],
)
async def test_engines_that_differ_do_not_exchange_blocks(
    decode: dict[str, Any], name: str | None, paired: Paired
) -> None:
    async with paired(decode=decode, name=name, lease_seconds=0.3) as pair:
        _, decoded = await pair.ask(prompt(40), params())
        assert len(decoded.tokens) == 20
        assert (pair.side.counters.pulled, pair.side.counters.recomputed) == (0, 1)
        await pair.until_idle()


def test_a_fingerprint_names_weights_rope_and_how_they_are_held(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    held = {"quantization": "none", "dtype": "float32"}
    given = checkpoint("llama-gqa")
    same, turned = (shutil.copytree(given, tmp_path / name) for name in ("same", "turned"))
    config = json.loads((turned / "config.json").read_text(encoding="utf-8"))
    config["rope_theta"] = 123456.0
    (turned / "config.json").write_text(json.dumps(config), encoding="utf-8")
    prints = {
        "this": fingerprint(given, **held),
        "rope": fingerprint(turned, **held),
        "quantization": fingerprint(given, **held | {"quantization": "int8"}),
        "dtype": fingerprint(given, **held | {"dtype": "bfloat16"}),
        "model": fingerprint(checkpoint("qwen2-gqa"), **held),
    }
    assert len(set(prints.values())) == len(prints)
    assert fingerprint(same, **held) == prints["this"]


async def test_another_prompt_or_salt_under_the_same_room_gets_nothing(paired: Paired) -> None:
    async with paired() as pair:
        for given, taken in (
            ({"tokens": prompt(40)}, {"tokens": prompt(17)}),
            ({"tokens": prompt(40), "salt": "a"}, {"tokens": prompt(40), "salt": "b"}),
        ):
            pair.rooms += 1
            await asyncio.gather(
                read(pair.given, pair.request(how=params(), room=pair.rooms, **given)),
                read(pair.taken, pair.request(how=params(), room=pair.rooms, **taken)),
            )
        assert (pair.side.counters.pulled, pair.side.counters.recomputed) == (0, 2)
        await pair.until_idle()


async def test_an_unreachable_peer_means_recomputing(load: Callable[..., Engine], paired: Paired) -> None:
    async with paired() as pair:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            pair.port = closed.getsockname()[1]
        decoded = await read(pair.taken, pair.request(prompt(40), params()))
        assert decoded.tokens == alone(load, params())[LENGTHS.index(40)]
        assert pair.side.counters.recomputed == 1
        await pair.until_idle()


async def test_a_lease_that_is_not_taken_times_out(paired: Paired) -> None:
    async with paired(lease_seconds=3.0) as pair:
        prefilled = await read(pair.given, pair.request(prompt(40), params()))
        assert (len(prefilled.tokens), prefilled.finish) == (1, "length")
        assert pair.give.tree.available_blocks < pair.give.tree.pool.capacity
        await pair.until_idle()
        # Requests that come now are refused at once.
        decoded = await read(pair.taken, pair.request(prompt(40), params(), room=pair.rooms))
        assert len(decoded.tokens) == 20
        assert pair.side.counters.recomputed == 1


async def test_a_room_serves_one_request_at_a_time(paired: Paired) -> None:
    async with paired() as pair:
        async with await pair.given.submit(pair.request(prompt(400), params(), room=7)):
            other = pair.request(prompt(17), params(), room=7)
            with pytest.raises(RequestRefused, match="room 7 is taken") as caught:
                await pair.given.submit(
                    Request(id="other", prompt=other.prompt, params=other.params, bootstrap=other.bootstrap)
                )
            assert caught.value.param == "bootstrap_room"
            await read(pair.taken, pair.request(prompt(400), params(), room=7))
        await pair.until_idle()


class Gate:
    """Holds the prefill side at a stage until the test opens it."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, stage: str) -> None:
        if stage == self.stage:
            self.reached.set()
            assert self.open.wait(60)


@pytest.mark.parametrize("backend", ["tcp", "shm"])
@pytest.mark.parametrize("stage", STAGES[:3])
@pytest.mark.parametrize("side", ["prefill", "decode", "both"])
async def test_an_abort_at_any_stage_returns_all_blocks_on_both_sides(
    side: str, stage: str, backend: str, paired: Paired
) -> None:
    gate = Gate(stage)
    async with paired(backend, gate, lease_seconds=0.5) as pair:
        request = pair.request(prompt(90), params())
        prefilling = await pair.given.submit(request)
        decoding = await pair.taken.submit(request)
        await asyncio.to_thread(gate.reached.wait, 60)
        if side != "prefill":
            decoding.close()
        if side != "decode":
            prefilling.close()
        if side != "prefill":
            # In the same step, whatever the peer is doing.
            async with asyncio.timeout(60):
                while pair.take.tree.available_blocks < pair.take.tree.pool.capacity:
                    await asyncio.sleep(0.005)
        gate.open.set()
        if side == "prefill":
            answer = Answer()
            async for output in decoding:
                answer.add(output)
            assert len(answer.tokens) == 20
        prefilling.close()
        decoding.close()
        await pair.until_idle()


@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_a_prefill_that_is_aborted_before_it_is_done_notifies_its_peer(
    steps: int, paired: Paired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`steps`: how many of its 50 steps the prefill has done."""
    reached, aborted = threading.Event(), threading.Event()
    async with paired(chunk_tokens=8, kv_tokens=2048) as pair:
        step, done = pair.give.step, 0

        def held() -> Any:
            nonlocal done
            if done == steps:
                reached.set()
                assert aborted.wait(60)
            done += 1
            return step()

        monkeypatch.setattr(pair.give, "step", held)
        request = pair.request(prompt(400), params())
        decoding = asyncio.create_task(read(pair.taken, request))
        async with await pair.given.submit(request):
            assert await asyncio.to_thread(reached.wait, 60)
        aborted.set()
        assert len((await decoding).tokens) == 20
        assert pair.side.counters.recomputed == 1
        await pair.until_idle()


async def test_a_request_that_waits_for_a_place_can_be_aborted_too(paired: Paired) -> None:
    async with paired(decode={"running_max": 1}) as pair:
        nobody_comes = pair.request(prompt(40), params())
        first = await pair.taken.submit(nobody_comes)
        second = await pair.taken.submit(pair.request(prompt(17), params()))
        second.close()
        first.close()
        await pair.until_idle()
        assert pair.side.counters.aborted == 2


async def test_more_than_fits_at_once_all_finish(load: Callable[..., Engine], paired: Paired) -> None:
    # Reservations and leases hold blocks that no preemption can free: the other requests wait for them.
    wanted = alone(load, params(5))
    async with paired(block_size=4, kv_tokens=160, running_max=4) as pair:
        answers = await asyncio.gather(
            *(pair.ask(prompt(length), params(5)) for length in LENGTHS for _ in range(3))
        )
        assert [tokens for tokens in wanted for _ in range(3)] == [decoded.tokens for _, decoded in answers]
        await pair.until_idle()


async def test_an_engine_that_has_stopped_fails_calls_at_once(load: Callable[..., Engine]) -> None:
    async with AsyncEngine(load()) as engine:
        pass
    with pytest.raises(EngineFailed):
        engine.call(list).result(5)


# The lease book alone


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def holding(request_id: str = "a") -> HeldPrompt:
    return HeldPrompt(
        request_id=request_id,
        blocks=(1,),
        num_tokens=3,
        digest="",
        first=SampledTokens(tokens=(5,)),
        seed=0,
        cached_tokens=0,
    )


def test_blocks_are_let_go_exactly_once_whatever_happens_at_the_end() -> None:
    freed: list[str] = []
    leases = HandoffLeases(freed.append)
    leases.open(1, "a")
    leases.mark_ready(1, holding())
    lease = leases.start_sending(1, 0, lambda: False)
    leases.abort(1, "the client left")
    assert (freed, lease.state) == ([], LeaseState.SENDING)
    leases.mark_sent(lease)
    leases.mark_sent(lease)
    leases.abort(1, "again", lease)
    assert (freed, lease.state, len(leases)) == (["a"], LeaseState.RELEASED, 0)


def test_a_prompt_that_was_aborted_meanwhile_is_freed_when_it_is_ready() -> None:
    freed: list[str] = []
    leases = HandoffLeases(freed.append)
    leases.open(1, "a")
    leases.abort(1, "the client left")
    leases.mark_ready(1, holding())
    assert freed == ["a"]
    with pytest.raises(HandoffFailed, match="the client left"):
        leases.start_sending(1, 0, lambda: False)


def test_only_ready_leases_time_out() -> None:
    freed: list[str] = []
    clock = Clock()
    leases = HandoffLeases(freed.append, seconds=5, clock=clock)
    for room in (1, 2, 3):
        leases.open(room, str(room))
    leases.mark_ready(2, holding("2"))
    leases.mark_ready(3, holding("3"))
    leases.start_sending(3, 0, lambda: False)
    clock.now = 4.9
    leases.abort_expired()
    assert freed == []
    clock.now = 5.0
    leases.abort_expired()
    assert (freed, leases.states()) == (["2"], {1: LeaseState.QUEUED, 3: LeaseState.SENDING})


def test_what_has_ended_is_forgotten_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    from workers.engine.disaggregation import handoff

    monkeypatch.setattr(handoff, "ENDED_MAX", 3)
    leases = HandoffLeases(lambda _: None)
    for room in range(10):
        leases.open(room, "a")
        leases.abort(room, "over")
    assert len(leases._ended) == 3
