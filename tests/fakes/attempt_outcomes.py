"""What workers answer in tests of attempts, and the stages on which requests meet them."""

from gateway.dispatch.hedging import Hedging
from radix_cache.match import WorkerId
from tests.fakes.dispatch_stage import (
    SPACE,
    DispatchStage,
    tenant,
    with_limits,
)
from tests.fakes.stub_adapter import StubAnswer
from workers.adapter import FailureKind, WorkerFailed
from workers.worker import Role

UNHEALTHY = WorkerFailed("connection refused")
SERVER_ERROR = WorkerFailed("status 500", failure=FailureKind.SERVER_ERROR)
BUSY = WorkerFailed("status 503", failure=FailureKind.BUSY, retry_after_seconds=7.0)
REFUSED = WorkerFailed("status 401", failure=FailureKind.REFUSED)
SILENT = WorkerFailed("no first byte", timed_out=True)
BAD_REQUEST = StubAnswer(status=400, pieces=(b"{}",))
CONSENTS = tenant(may_overflow=True)


def calls(stage):
    """Return by worker how many requests were sent."""
    return {name: len(adapter.calls) for name, adapter in stage.adapters.items() if adapter.calls}


def held(stage, prompt, name="a"):
    """Return how many blocks of the prompt the index knows on a worker."""
    return stage.index.match(SPACE, prompt.hashes).confirmed.get(WorkerId(name), 0)


def pair_stage(kind="vllm"):
    """Return a stage on which a prefill worker and a decode worker serve requests together."""
    stage = DispatchStage("x")
    stage.fleet.remove(WorkerId("x"))
    stage.join("p", kind=kind, role=Role.PREFILL)
    stage.join("d", kind=kind, role=Role.DECODE)
    if kind == "vllm":
        stage.adapters["p"].next(StubAnswer(pieces=(b'{"kv_transfer_params":{"a":1}}',)))
    return stage


def provider_stage(**terms):
    """Return a stage on which a provider is the only worker that is up."""
    stage = DispatchStage("a")
    stage.fleet.drain(WorkerId("a"))
    stage.provider(**terms)
    return stage


def hedged(*names, **options):
    """Return a stage on which a second worker gets a request that has no byte yet."""
    hedging = Hedging(enabled=True, after_seconds=0.0, prompt_tokens_max=10_000)
    return DispatchStage(*(names or ("a", "b", "c")), hedging=hedging, **options)


def preemptible(*names):
    """Return a stage on which batch work may have to give up its placement."""
    return DispatchStage(*(names or ("a",)), limits=with_limits(preempts=True))
