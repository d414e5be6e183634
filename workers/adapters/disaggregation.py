"""Disaggregated serving: runs one request as a prefill call and a decode call, on two workers that hand over KV.

    bootstrap    sglang, embedded    prefill ======== the same body to both, at once ======== decode
                                     the workers meet at `bootstrap_host`, `bootstrap_port`, in a `bootstrap_room`
                                     for each answer
    transfer     vllm                prefill --one token, not streamed--> `kv_transfer_params` --> decode
                                     the prefill worker's value of that name goes to the decode worker unchanged

The client gets the decode call's answer. Before its first byte, a failure of either call ends the other at once,
and a refusal of either call is the answer. A client that disconnects ends both calls at any time. After the first
byte the KV has been handed over; the rest of the prefill call is then read for a while and discarded, because
closing its connection could abort a transfer that is being confirmed.
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
from workers.adapter import StreamBroken, WorkerAdapter, WorkerAnswer, WorkerCall, WorkerFailed
from workers.worker import DisaggregationProfile, Role

log = logging.getLogger(__name__)

BOOTSTRAP_PORT = 8998
"""SGLang's default port, for workers that do not report theirs."""

ROOMS = 2**63
"""The number of different bootstrap rooms."""

LINGER_SECONDS = 10.0
"""How long the prefill call is still read after the answer has ended."""

REFUSAL_BYTES_MAX = 1024**2
PREFILL_BYTES_MAX = 16 * 1024**2
"""The longest answer of a prefill worker: one token, and the places of a long prompt's blocks."""

FIRST_BYTE_SECONDS_MIN = 1.0
"""Least time for the decode call's first byte, however long the prefill call took."""


class KvHandoff(Enum):
    """How the workers of a pair find each other; see the top of this file."""

    BOOTSTRAP = "bootstrap"
    TRANSFER = "transfer"


class DisaggregationTraits(msgspec.Struct, frozen=True, gc=False):
    """The abilities of pairs of one kind of worker."""

    handoff: KvHandoff
    serves_alone: bool
    """Whether a decode worker can compute a prompt itself."""
    splits_multiple: bool
    """Whether a request for several answers, or with an echo of the prompt, can be split."""


DISAGGREGATION_TRAITS: Mapping[str, DisaggregationTraits] = {
    "embedded": DisaggregationTraits(KvHandoff.BOOTSTRAP, serves_alone=True, splits_multiple=True),
    "sglang": DisaggregationTraits(KvHandoff.BOOTSTRAP, serves_alone=False, splits_multiple=True),
    # Several answers would all fetch the same blocks, which are freed after the first.
    "vllm": DisaggregationTraits(KvHandoff.TRANSFER, serves_alone=True, splits_multiple=False),
}
"""Traits by kind of worker; other kinds cannot form pairs."""


@lru_cache(maxsize=64)
def disaggregation_profile(kind: str, role: Role) -> DisaggregationProfile | None:
    """Return the profile of a worker in a pair, for routing; None for a worker that serves whole requests."""
    traits = DISAGGREGATION_TRAITS.get(kind)
    if traits is None or role is Role.BOTH:
        return None
    return DisaggregationProfile(
        role=role, kind=kind, serves_alone=traits.serves_alone, splits_multiple=traits.splits_multiple
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMember:
    """One of the two workers of a disaggregated call."""

    id: WorkerId
    adapter: WorkerAdapter
    host: str = ""
    port: int | None = None
    """Bootstrap host and port of a prefill worker; None: BOOTSTRAP_PORT."""
    ranks: int = 1
    """Number of its data-parallel ranks."""


class DisaggregatedCall:
    """One request on two workers; it raises what WorkerAdapter.stream raises, with the id of the failed worker.

    `answers` is the number of answers, each with its own handoff. `session` is equal for all turns of a
    conversation, so that they get the same data-parallel rank of the prefill worker; in SGLang the rank is the room
    number modulo the number of ranks. `draw` returns a random number below its argument.
    """

    def __init__(
        self,
        kind: str,
        prefill: PairMember,
        decode: PairMember,
        *,
        answers: int = 1,
        session: int | None = None,
        draw: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self._cached: int | None = None
        self._handoff = DISAGGREGATION_TRAITS[kind].handoff
        self._prefill = prefill
        self._decode = decode
        self._answers = answers
        self._session = session
        self._draw = draw

    def stream(self, call: WorkerCall) -> AbstractAsyncContextManager[WorkerAnswer]:
        """Send the request to both workers; the answer is the decode worker's."""
        return self._both_at_once(call) if self._handoff is KvHandoff.BOOTSTRAP else self._prefill_first(call)

    def cached(self, reported: int | None) -> int | None:
        """Return the prompt tokens that were cached; `reported` is the number in the answer.

        vLLM's decode workers count handed-over tokens as cached, so the prefill worker's number is used there.
        SGLang's decode workers pass on the prefill worker's number.
        """
        return reported if self._handoff is KvHandoff.BOOTSTRAP else self._cached

    @asynccontextmanager
    async def _both_at_once(self, call: WorkerCall) -> AsyncIterator[WorkerAnswer]:
        call = msgspec.structs.replace(call, fields={**call.fields, **self._bootstrap_fields()})
        # A carrier takes the decode call, since its answer goes to the client.
        prefilling = asyncio.create_task(
            self._discard_prefill(msgspec.structs.replace(call, carrier=None) if call.carrier else call)
        )
        prefilling.add_done_callback(self._log_failed_prefill)
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
        self, call: WorkerCall, prefilling: "asyncio.Task[_Refusal | None]", stack: AsyncExitStack
    ) -> WorkerAnswer:
        """Return the decode call's answer with its first bytes, or an earlier refusal of the prefill call."""
        loop = asyncio.get_running_loop()

        def cut(ended: "asyncio.Task[_Refusal | None]") -> None:
            # The prefill call has failed, so there will be no KV to fetch.
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
        except WorkerFailed as err:
            # A silent decode worker is waiting for the prompt's KV.
            waits = err.timed_out and not prefilling.done()
            raise _with_worker(err, self._prefill if waits else self._decode) from err

    async def _discard_prefill(self, call: WorkerCall) -> "_Refusal | None":
        """Run the prefill call to its end; return its refusal, if any. Raises WorkerFailed."""
        try:
            async with self._prefill.adapter.stream(call) as answer:
                if answer.status >= 400:
                    return await _refused(answer)
                async for _ in answer.chunks():
                    pass
                return None
        except WorkerFailed as err:
            raise _with_worker(err, self._prefill) from err
        except StreamBroken as err:
            raise WorkerFailed(f"the prefill broke off: {err}", worker=self._prefill.id) from err

    def _log_failed_prefill(self, prefilling: "asyncio.Task[_Refusal | None]") -> None:
        """Log a failed prefill call, even if its result is no longer awaited."""
        if not prefilling.cancelled() and (err := prefilling.exception()) is not None:
            log.debug("the prefill call at %s ended with: %s", self._prefill.id, err)

    def _bootstrap_fields(self) -> dict[str, msgspec.Raw]:
        """Return the bootstrap fields: lists with a value for each answer; for one answer plain values."""
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
        """Return different, unguessable room numbers, since the number entitles a worker to the KV blocks."""
        ranks, rooms = self._prefill.ranks, dict[int, None]()
        while len(rooms) < self._answers:
            room = self._draw(ROOMS)
            if self._session is not None:
                room = self._draw(ROOMS // ranks) * ranks + self._session % ranks
            rooms[room] = None
        return list(rooms)

    @asynccontextmanager
    async def _prefill_first(self, call: WorkerCall) -> AsyncIterator[WorkerAnswer]:
        loop = asyncio.get_running_loop()
        until = loop.time() + call.first_byte_seconds_max
        try:
            transfer = await self._prefilled(_one_token(call))
        except WorkerFailed as err:
            raise _with_worker(err, self._prefill) from err
        if isinstance(transfer, _Refusal):
            yield transfer
            return
        async with AsyncExitStack() as stack:
            decode = msgspec.structs.replace(
                call,
                fields={**call.fields, "kv_transfer_params": transfer},
                first_byte_seconds_max=max(FIRST_BYTE_SECONDS_MIN, until - loop.time()),
            )
            try:
                answer = await stack.enter_async_context(self._decode.adapter.stream(decode))
            except WorkerFailed as err:
                raise _with_worker(err, self._decode) from err
            yield answer

    async def _prefilled(self, call: WorkerCall) -> "msgspec.Raw | _Refusal":
        """Run the prefill call; return the `kv_transfer_params` for the decode worker. Raises WorkerFailed."""
        async with self._prefill.adapter.stream(call) as answer:
            if answer.status >= 400:
                return await _refused(answer)
            try:
                text = await _whole(answer, PREFILL_BYTES_MAX)
                reply = msgspec.json.decode(text, type=_Prefilled)
            except (StreamBroken, msgspec.DecodeError, UnicodeError) as err:
                raise WorkerFailed(f"the prefill failed: {err}") from err
        if bytes(reply.kv_transfer_params) == b"null":
            log.warning(
                "prefill worker %s sends no kv_transfer_params: was it started with --kv-transfer-config?",
                self._prefill.id,
            )
        details = reply.usage.prompt_tokens_details if reply.usage is not None else None
        self._cached = details.cached_tokens if details is not None else None
        return reply.kv_transfer_params


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Prefilled(msgspec.Struct):
    """The part of a prefill worker's answer that is read."""

    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")
    usage: _Usage | None = None


class _Refusal(WorkerAnswer):
    """A refusal that was read whole, as a WorkerAnswer."""

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
"""Fields that a prefill of one token cannot serve, or would serve needlessly."""


def _one_token(call: WorkerCall) -> WorkerCall:
    """Return the call with the same prompt, and an answer of one token that is not streamed."""
    fields = {name: value for name, value in call.fields.items() if name not in _LEFT_OUT}
    one = msgspec.Raw(b"1")
    fields |= {"stream": msgspec.Raw(b"false"), "max_tokens": one}
    if "max_completion_tokens" in fields:
        fields["max_completion_tokens"] = one
    fields["kv_transfer_params"] = msgspec.Raw(msgspec.json.encode(_TO_PREFILL))
    return msgspec.structs.replace(call, fields=fields, stream=False, carrier=None)


async def _refused(answer: WorkerAnswer) -> _Refusal:
    return _Refusal(answer.status, answer.content_type, await _whole(answer, REFUSAL_BYTES_MAX))


async def _whole(answer: WorkerAnswer, bytes_max: int) -> bytes:
    parts, size = [], 0
    async for chunk in answer.chunks():
        size += len(chunk)
        if size > bytes_max:
            raise StreamBroken("the answer is too large")
        parts.append(chunk)
    return b"".join(parts)


def _with_worker(err: WorkerFailed, member: PairMember) -> WorkerFailed:
    """Return the same failure with the worker's id."""
    return WorkerFailed(
        str(err),
        failure=err.failure,
        timed_out=err.timed_out,
        retry_after_seconds=err.retry_after_seconds,
        worker=member.id,
    )
