"""RequestRecord: the account of a request that has ended.

Observers (metrics, traces, the ledger, the console) get the record, and nothing else; `Progress.record` of
progress.py makes it.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from gateway.domain.token_usage import ChargedTokens
from gateway.quotas.quota_store import LimitStatus
from gateway.telemetry.request_events import FailedAttempt, QueueWait
from gateway.telemetry.trace import Trace
from policies.routing.protocol import Route

OK = "ok"
CLIENT_CLOSED = "client_closed"
OTHER_TENANTS = "*"
"""The common label of all tenants beyond the bound of tenants with numbers of their own."""

NO_TAGS: Mapping[str, str] = MappingProxyType({})


class RequestOutcome(msgspec.Struct, frozen=True, gc=False):
    """The fields of `Progress` at a request's end, under the same names.

    A struct is made several times as fast from values in order as from so many names.
    """

    id: str
    surface: str
    code: str  # "ok", "client_closed", or the code of the error that the client saw
    status: int
    tenant: str
    key_id: str
    model: str
    worker: str | None
    by_shadow: bool  # the shadow policy chose the worker
    attempts: int
    stream: bool
    spend: int  # millionths of the currency
    started_at: float  # since 1970
    answered: bool  # a worker began an answer
    worker_ttft_seconds: float | None  # from dispatch to the worker's first token, of streams
    predicted_ttft_seconds: float | None  # what the latency model predicted for `worker_ttft_seconds`
    trace: Trace | None
    organisation: str = ""
    asked: str = ""  # the model, by the name that the client used
    user: str | None = None  # the end user that the client named
    tags: Mapping[str, str] = NO_TAGS  # `metadata` of the client's request
    charged: ChargedTokens | None = None  # None if nothing was computed
    first_token_seconds: float | None = None  # from arrival to a worker's first token, where that is known
    usage_impossible: bool = False  # the worker's token counts were impossible
    prefill_worker: str | None = None  # the worker that computed the prompt, if it is not `worker`
    route: Route | None = None  # the route to `worker`
    ranking: Sequence[Route] = ()  # the best routes of the last ranking, as they were then
    wait: QueueWait | None = None  # why it waited, if it did
    failures: tuple[FailedAttempt, ...] = ()
    limits: tuple[LimitStatus, ...] = ()  # what was left of each limit when quota was reserved
    finish_reasons: tuple[str, ...] = ()  # why the answers ended, of requests with a trace


class RequestRecord(RequestOutcome, frozen=True, kw_only=True, gc=False):
    """One request that has ended.

    Times are in seconds; None where the request did not get that far.
    """

    prompt_tokens: int
    predicted_tokens: int  # cached prompt tokens that routing predicted, in the worker's count of the prompt
    cached_tokens: int | None  # cached prompt tokens that the worker reported
    output_tokens: int
    seconds: float  # from arrival to end
    dispatch_seconds: float | None  # from arrival to the last dispatch, less the time in the waiting room
    queue_seconds: float | None  # in the waiting room
    ttft_seconds: float | None  # from arrival to the first output byte, of streams
    tpot_seconds: float | None
    steps: tuple[tuple[str, float, float], ...]  # (name, start, end) on the clock of `started_at`
    service_class: str = ""
    ttft_target_seconds: float | None = None  # of the service class
