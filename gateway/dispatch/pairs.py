"""A request on two workers: who talks to them, and what it weighs on each.

    enter                                   first token                leave
    prefill   |-- tokens_queued, prompt's KV ----|
    decode    |-- stream, KV of prompt and answer ------------------------|

Both are counted when it is sent: the next decision must see a prefill that has not begun yet.
"""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from gateway.domain.context import RequestContext
from gateway.fleet.loads import Place, WorkerLoad
from gateway.fleet.worker import Worker
from workers.adapter import WorkerAnswer, WorkerCall
from workers.adapters.disaggregation import Leg, Pair


class Through(Protocol):
    """Whoever a call goes through: a worker's adapter, or a pair."""

    def stream(self, call: WorkerCall) -> AbstractAsyncContextManager[WorkerAnswer]: ...


def pair(prefill: Worker, decode: Worker, ctx: RequestContext, session: int | None) -> Pair:
    """The two workers, to be called as one."""
    host, port = prefill.report.handoff or ("", None)
    return Pair(
        prefill.kind,
        Leg(
            id=prefill.id,
            adapter=prefill.adapter,
            host=host,
            port=port,
            ranks=prefill.report.ranks,
        ),
        Leg(id=decode.id, adapter=decode.adapter),
        answers=ctx.request.answers,
        session=session,
    )


class PairPlace(Place):
    """See Place; as drawn above."""

    __slots__ = ("_prompt",)

    def __init__(
        self,
        prefill: WorkerLoad,
        decode: WorkerLoad,
        *,
        uncached_tokens: int,
        prompt_tokens: int,
        kv_tokens: int,
    ) -> None:
        super().__init__(decode, uncached_tokens=0, kv_tokens=kv_tokens)
        self._prompt = Place(prefill, uncached_tokens=uncached_tokens, kv_tokens=prompt_tokens)

    @property
    def tokens_computing(self) -> int:
        return self._prompt.tokens_queued

    def first_token(self) -> None:
        self._prompt.leave()
        super().first_token()
