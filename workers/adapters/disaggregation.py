"""One request as a prefill and a decode leg, on two workers that hand over KV.

    bootstrap    sglang, embedded    prefill ======== the same body to both, at once ======== decode
                                     they meet at `bootstrap_host`, `_port`, in a `bootstrap_room` for each answer
    transfer     vllm                prefill --one token, not streamed--> `kv_transfer_params` --> decode
                                     what the prefill worker answers under that name goes on unchanged

The decode leg's answer is the client's. Until its first byte each leg's failure ends the other at once, and so does
a client that leaves, at any time; a refusal of either leg is the answer. After the first byte the KV is there: what
still comes from the prefill leg is read for a while and thrown away, for hanging up could abort a transfer that is
being confirmed.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import msgspec

from radix_cache.match import WorkerId
from workers.adapter import StreamBroken, WorkerAdapter, WorkerAnswer, WorkerCall, WorkerUnreachable
from workers.worker import DisaggregationProfile, Role

log = logging.getLogger(__name__)

BOOTSTRAP_PORT = 8998
"""SGLang's own, where a worker does not say."""

ROOMS = 2**63
LINGER_SECONDS = 10.0
REFUSAL_BYTES_MAX = 1024**2
PREFILL_BYTES_MAX = 16 * 1024**2
"""Of a prefill worker's answer in JSON: a token, and where the blocks of a long prompt lie."""

FIRST_BYTE_SECONDS_MIN = 1.0


class Handoff(Enum):
    """How a kind's workers are told of each other."""

    BOOTSTRAP = "bootstrap"
    TRANSFER = "transfer"


class Way(msgspec.Struct, frozen=True, gc=False):
    """Of one kind. `alone`: its decode workers can compute a prompt themselves. `several`: also requests of several
    answers, or that are answered with something of the prompt, can be split."""

    handoff: Handoff
    alone: bool
    several: bool


WAYS: Mapping[str, Way] = {
    "embedded": Way(Handoff.BOOTSTRAP, alone=True, several=True),
    "sglang": Way(Handoff.BOOTSTRAP, alone=False, several=True),
    # Of several answers each would fetch the same blocks, which are free after the first.
    "vllm": Way(Handoff.TRANSFER, alone=True, several=False),
}
"""By kind of worker; other kinds cannot be halves."""


@lru_cache(maxsize=64)
def disaggregation_profile(kind: str, role: Role) -> DisaggregationProfile | None:
    """What routing has to know of a worker; None if it serves whole requests."""
    way = WAYS.get(kind)
    if way is None or role is Role.BOTH:
        return None
    return DisaggregationProfile(role=role, kind=kind, alone=way.alone, several=way.several)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One of the two workers. `host`, `port`: where it hands over, for prefill workers of kinds that bootstrap."""

    id: WorkerId
    adapter: WorkerAdapter
    host: str = ""
    port: int | None = None
    ranks: int = 1


class Pair:
    """One request on two workers: see WorkerAdapter.stream for what is raised when. An error names its worker.

    `answers`: that will come, each with a handoff of its own. `session`: equal for the turns of one conversation,
    which then meet the same data-parallel rank of the prefill worker: SGLang's is the room's, modulo the ranks.
    """

    def __init__(
        self,
        kind: str,
        prefill: Leg,
        decode: Leg,
        *,
        answers: int = 1,
        session: int | None = None,
        draw: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self._cached: int | None = None
        self._handoff = WAYS[kind].handoff
        self._prefill = prefill
        self._decode = decode
        self._answers = answers
        self._session = session
        self._draw = draw

    def stream(self, call: WorkerCall) -> AbstractAsyncContextManager[WorkerAnswer]:
        return self._at_once(call) if self._handoff is Handoff.BOOTSTRAP else self._in_turn(call)

    def cached(self, reported: int | None) -> int | None:
        """Tokens of the prompt that nobody had to compute. `reported`: in the answer.

        vLLM's decode workers count what they were handed as cached; SGLang's pass the prefill worker's number on.
        """
        return reported if self._handoff is Handoff.BOOTSTRAP else self._cached

    @asynccontextmanager
    async def _at_once(self, call: WorkerCall) -> AsyncIterator[WorkerAnswer]:
        call = msgspec.structs.replace(call, fields={**call.fields, **self._meeting()})
        prefilling = asyncio.create_task(self._thrown_away(call))
        prefilling.add_done_callback(self._ended)
        over = False
        try:
            async with AsyncExitStack() as stack:
                answer = await self._first_of_both(call, prefilling, stack)
                yield answer
                over = answer.status < 400
        finally:
            if over:
                asyncio.get_running_loop().call_later(LINGER_SECONDS, prefilling.cancel)
            else:
                prefilling.cancel()

    async def _first_of_both(
        self, call: WorkerCall, prefilling: "asyncio.Task[_Refused | None]", stack: AsyncExitStack
    ) -> WorkerAnswer:
        """The decode leg's answer once its first bytes are there, or an earlier refusal of the prefill leg."""
        loop = asyncio.get_running_loop()

        def cut(ended: "asyncio.Task[_Refused | None]") -> None:
            # Whoever computes the prompt has let go of it: nothing will ever be fetched.
            if ended.cancelled() or ended.exception() is not None or ended.result() is not None:
                waiting.reschedule(loop.time())

        try:
            async with asyncio.timeout(None) as waiting:
                prefilling.add_done_callback(cut)
                try:
                    return await stack.enter_async_context(self._decode.adapter.stream(call))
                finally:
                    prefilling.remove_done_callback(cut)
        except TimeoutError:
            refused = await prefilling
            assert refused is not None
            return refused
        except WorkerUnreachable as err:
            # A decode worker that waits in silence waits for the prompt.
            waits = err.timed_out and not prefilling.done()
            raise _of(err, self._prefill if waits else self._decode) from err

    async def _thrown_away(self, call: WorkerCall) -> "_Refused | None":
        """The prefill leg, to its end. Raises WorkerUnreachable for whatever went wrong."""
        try:
            async with self._prefill.adapter.stream(call) as answer:
                if answer.status >= 400:
                    return await _refused(answer)
                async for _ in answer.chunks():
                    pass
                return None
        except WorkerUnreachable as err:
            raise _of(err, self._prefill) from err
        except StreamBroken as err:
            raise WorkerUnreachable(f"its prefill broke off: {err}", worker=self._prefill.id) from err

    def _ended(self, prefilling: "asyncio.Task[_Refused | None]") -> None:
        """Also where nobody asks any more what came of it."""
        if not prefilling.cancelled() and (err := prefilling.exception()) is not None:
            log.debug("the prefill leg at %s ended with: %s", self._prefill.id, err)

    def _meeting(self) -> dict[str, msgspec.Raw]:
        """One value for each answer; of one answer it is no list."""
        port = self._prefill.port or BOOTSTRAP_PORT
        values: dict[str, list[Any]] = {
            "bootstrap_host": [self._prefill.host] * self._answers,
            "bootstrap_port": [port] * self._answers,
            "bootstrap_room": self._rooms(),
        }
        return {
            name: msgspec.Raw(msgspec.json.encode(value if self._answers > 1 else value[0]))
            for name, value in values.items()
        }

    def _rooms(self) -> list[int]:
        """Numbers that nobody can guess, all different: who knows one gets the blocks."""
        ranks, rooms = self._prefill.ranks, dict[int, None]()
        while len(rooms) < self._answers:
            room = self._draw(ROOMS)
            if self._session is not None:
                room = self._draw(ROOMS // ranks) * ranks + self._session % ranks
            rooms[room] = None
        return list(rooms)

    @asynccontextmanager
    async def _in_turn(self, call: WorkerCall) -> AsyncIterator[WorkerAnswer]:
        loop = asyncio.get_running_loop()
        until = loop.time() + call.first_byte_seconds_max
        try:
            found = await self._prefilled(_one_token(call))
        except WorkerUnreachable as err:
            raise _of(err, self._prefill) from err
        if isinstance(found, _Refused):
            yield found
            return
        async with AsyncExitStack() as stack:
            decode = msgspec.structs.replace(
                call,
                fields={**call.fields, "kv_transfer_params": found},
                first_byte_seconds_max=max(FIRST_BYTE_SECONDS_MIN, until - loop.time()),
            )
            try:
                answer = await stack.enter_async_context(self._decode.adapter.stream(decode))
            except WorkerUnreachable as err:
                raise _of(err, self._decode) from err
            yield answer

    async def _prefilled(self, call: WorkerCall) -> "msgspec.Raw | _Refused":
        """What the decode worker has to know. Raises WorkerUnreachable."""
        async with self._prefill.adapter.stream(call) as answer:
            if answer.status >= 400:
                return await _refused(answer)
            try:
                text = await _whole(answer, PREFILL_BYTES_MAX)
                told = msgspec.json.decode(text, type=_Prefilled)
            except (StreamBroken, msgspec.DecodeError, UnicodeError) as err:
                raise WorkerUnreachable(f"its prefill failed: {err}") from err
        if bytes(told.kv_transfer_params) == b"null":
            log.warning(
                "prefill worker %s hands nothing over: has it a --kv-transfer-config?", self._prefill.id
            )
        details = told.usage.prompt_tokens_details if told.usage is not None else None
        self._cached = details.cached_tokens if details is not None else None
        return told.kv_transfer_params


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Prefilled(msgspec.Struct):
    """What is read of a prefill worker's answer."""

    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")
    usage: _Usage | None = None


class _Refused:
    """A refusal, as WorkerAnswer."""

    def __init__(self, status: int, content_type: str, body: bytes) -> None:
        self.status = status
        self.content_type = content_type
        self._body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._body:
            yield self._body


_TO_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_LEFT_OUT = ("stream_options", "min_tokens", "n", "best_of", "logprobs", "top_logprobs")
"""What a prefill of one token cannot do, or would do for nobody."""


def _one_token(call: WorkerCall) -> WorkerCall:
    """The prompt, and as little of an answer as can be had."""
    fields = {name: value for name, value in call.fields.items() if name not in _LEFT_OUT}
    one = msgspec.Raw(b"1")
    fields |= {"stream": msgspec.Raw(b"false"), "max_tokens": one}
    if "max_completion_tokens" in fields:
        fields["max_completion_tokens"] = one
    fields["kv_transfer_params"] = msgspec.Raw(msgspec.json.encode(_TO_PREFILL))
    return msgspec.structs.replace(call, fields=fields, stream=False)


async def _refused(answer: WorkerAnswer) -> _Refused:
    return _Refused(answer.status, answer.content_type, await _whole(answer, REFUSAL_BYTES_MAX))


async def _whole(answer: WorkerAnswer, bytes_max: int) -> bytes:
    parts, size = [], 0
    async for chunk in answer.chunks():
        size += len(chunk)
        if size > bytes_max:
            raise StreamBroken("the answer is too large")
        parts.append(chunk)
    return b"".join(parts)


def _of(err: WorkerUnreachable, leg: Leg) -> WorkerUnreachable:
    """The same failure, and whose it is."""
    return WorkerUnreachable(
        str(err),
        failure=err.failure,
        timed_out=err.timed_out,
        retry_after_seconds=err.retry_after_seconds,
        worker=leg.id,
    )
