"""Prefill/decode pairs: one request on two workers, of which one computes its prompt, the other its answer.

    dispatch                                first token                end
    prefill   |-- tokens_queued, prompt's KV ----|
    decode    |-- stream, KV of prompt and answer ------------------------|

Both shares count from the dispatch on: the next routing decision must see a prefill that has not begun yet.
"""

from gateway.domain.request_context import RequestContext
from gateway.fleet.loads import LoadShare, WorkerLoad
from gateway.fleet.worker import Worker
from workers.adapters.disaggregation import DisaggregatedCall, PairMember


def pair(prefill: Worker, decode: Worker, ctx: RequestContext, session: int | None) -> DisaggregatedCall:
    """Return the two workers as one target of a call."""
    host, port = prefill.report.bootstrap_address or ("", None)
    return DisaggregatedCall(
        prefill.kind,
        PairMember(
            id=prefill.id,
            adapter=prefill.adapter,
            host=host,
            port=port,
            ranks=prefill.report.ranks,
        ),
        PairMember(id=decode.id, adapter=decode.adapter),
        answers=ctx.request.answers,
        session=session,
    )


class PairLoadShare(LoadShare):
    """One request's share of the load of a prefill worker and a decode worker, as drawn above."""

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
        self._prompt = LoadShare(prefill, uncached_tokens=uncached_tokens, kv_tokens=prompt_tokens)

    @property
    def tokens_computing(self) -> int:
        """Tokens of the prefill worker's window that this request takes until its prefill is done."""
        return self._prompt.tokens_queued

    def note_first_token(self) -> None:
        """Take the request off the prefill worker."""
        self._prompt.end()

    def end(self) -> None:
        """Take the request off both workers."""
        self._prompt.end()
        super().end()
