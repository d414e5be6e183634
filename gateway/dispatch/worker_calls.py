"""The call that a worker gets for a request.

It has the client's fields that the worker's kind accepts (workers/adapters/request_fields.py), and
those that the gateway owns. The worker's adapter (workers/adapters) makes body and headers of it.
"""

from collections.abc import Callable, Collection

import msgspec

from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.placement import Placement
from gateway.domain.request import Surface
from gateway.relay.faithful_streams import has_faithful_stream
from workers.adapter import WorkerCall

ROOT_SURFACES = frozenset({Surface.TOKENIZE, Surface.DETOKENIZE})
"""APIs of workers that are not below /v1: vLLM has these two at its root, SGLang has them there too."""
PATHS = {surface: surface.value if surface in ROOT_SURFACES else f"v1/{surface.value}" for surface in Surface}
"""Paths of workers."""

NO_FIELDS: frozenset[str] = frozenset()

SAMPLES_LEARNT = 64
"""After this many measured first tokens of a worker, whole answers are streamed only while requests wait, or as
samples."""

SAMPLED_EVERY = 16
"""Then one whole answer in this many may still be streamed, as a sample of the speed."""

SAMPLE_SECONDS = 0.1
"""The shortest time between two such streams of a worker: its speed does not change that fast."""


class WorkerCalls:
    """Makes the call that a worker gets for a request."""

    def __init__(
        self,
        *,
        cache_salt: Callable[[str], str],
        first_byte_seconds_max: float,
        whole_seconds_max: float,
        idle_seconds_max: float,
        aggregates_streams: bool,
        requests_wait: Callable[[str], bool],
        pass_fields: Collection[str] = (),
    ) -> None:
        """`cache_salt` derives an isolation group's salt for the engine's prefix cache.

        `aggregates_streams`: whether a worker may send a stream where the client wants a whole answer.
        `requests_wait` returns whether requests for a model wait for room. `pass_fields`: names of fields that
        workers get beside those of their kind.
        """
        self._cache_salt = cache_salt
        self.first_byte_seconds_max = first_byte_seconds_max
        self.whole_seconds_max = whole_seconds_max
        self.idle_seconds_max = idle_seconds_max
        self.aggregates_streams = aggregates_streams
        self._requests_wait = requests_wait
        self._pass_fields = frozenset(pass_fields)

    def make(
        self, pending: PendingRequest, placement: Placement, on_wait: Callable[[], None] = lambda: None
    ) -> WorkerCall:
        """Return the request as the placement's worker gets it; `on_wait`: see WorkerCall."""
        ctx, prompt, worker = pending.ctx, pending.prompt, placement.worker
        request, trace = ctx.request, pending.progress.trace

        # The client's fields that this kind of worker accepts.
        path, fields, stream = PATHS[request.surface], request.fields, request.stream
        known = worker.adapter.request_fields.get(path, NO_FIELDS)
        if not fields.keys() <= known:
            known |= self._pass_fields
            fields = {name: value for name, value in fields.items() if name in known}
        if prompt.output_tokens_max is not None:
            fields = {**fields, "max_tokens": msgspec.Raw(b"%d" % prompt.output_tokens_max)}

        # A stream in place of a whole answer, where it is worth its price.
        if not stream and self.aggregates_streams and self._is_worth_streaming(pending, placement):
            fields, stream = {**fields, "stream": msgspec.Raw(b"true")}, True

        # A whole answer's first byte comes after its last token.
        first_byte_seconds_max = self.first_byte_seconds_max
        if not stream and (request.generates or request.form is not None):
            first_byte_seconds_max = max(first_byte_seconds_max, self.whole_seconds_max)

        # The data-parallel rank. For a prefill/decode pair, the handoff names the prefill rank; the decode worker
        # picks its own.
        rank = placement.rank
        if rank is not None and not (placement.prefill_worker is worker and request.generates):
            rank = None

        return WorkerCall(
            id=ctx.id,
            path=path,
            fields=fields,
            model=ctx.model.name,
            stream=stream,
            cache_salt=self._cache_salt(ctx.tenant.group),
            traceparent=trace.to_worker(pending.progress.attempts) if trace is not None else None,
            tracestate=trace.tracestate if trace is not None else "",
            first_byte_seconds_max=first_byte_seconds_max,
            idle_seconds_max=self.idle_seconds_max,
            priority=ctx.service_class.level if worker.priority else None,
            rank=rank.number if rank is not None else None,
            prompt_ids=prompt.ids,
            form=request.form,
            on_sent=pending.progress.mark_dispatched,
            on_wait=on_wait,
            carrier=ctx.carrier,
        )

    def _is_worth_streaming(self, pending: PendingRequest, placement: Placement) -> bool:
        """Return whether a whole answer is to be put together from a stream, for the sake of its first token.

        The first token shows when the prefill is done, which makes room for requests that wait, and how fast the
        worker is. A stream costs a relay several times what a whole answer does.
        """
        worker, request = placement.worker, pending.ctx.request
        if not worker.adapter.streams_whole or worker.response_shapes.of(request.surface) is None:
            return False
        learnt = placement.prefill_worker.learnt
        if learnt.own.fit.samples < SAMPLES_LEARNT or self._requests_wait(pending.queue_name):
            return has_faithful_stream(request)
        if pending.sequence % SAMPLED_EVERY or placement.placed_at - learnt.sample_asked_at < SAMPLE_SECONDS:
            return False
        learnt.sample_asked_at = placement.placed_at
        return has_faithful_stream(request)
