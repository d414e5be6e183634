"""A query for finished requests."""

from collections.abc import Mapping

import msgspec

from gateway.domain.whole_number import whole_number
from gateway.explorer.request_details import trace_id_of
from gateway.telemetry.outcome import is_slow, outcome_of
from gateway.telemetry.request_record import RequestRecord

LIMIT = 50
LIMIT_MAX = 200

FLAGS = {"true": True, "1": True, "": True, "false": False, "0": False}


class RequestQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of finished requests; None and False do not filter."""

    tenant: str | None = None
    model: str | None = None
    worker: str | None = None
    code: str | None = None
    trace: str | None = None
    """Id of a trace, as 32 hex digits."""
    slow: bool = False
    failed: bool = False
    """Requests that the gateway or workers failed; with `slow`, failed and slow ones."""
    limit: int = LIMIT
    brief: bool = False
    """Leave out what only the page of one request shows."""

    def matches(self, record: RequestRecord, slow_seconds: float) -> bool:
        """Return whether a request matches. `slow_seconds`: the duration from which a request is slow."""
        return (
            (self.tenant is None or record.tenant == self.tenant)
            and (self.model is None or record.model == self.model)
            and (self.worker is None or self.worker in (record.worker, record.prefill_worker))
            and (self.trace is None or self.trace == trace_id_of(record))
            and (self.code is None or record.code == self.code)
            and (
                not (self.slow or self.failed)
                or (self.slow and is_slow(record, slow_seconds))
                or (self.failed and outcome_of(record) == "failed")
            )
        )


QUERY_PARAMETERS = {
    "tenant": "Only requests of this tenant.",
    "model": "Only requests for this model.",
    "worker": "Only requests that this worker answered, or for which it computed the prompt.",
    "code": "Only requests that ended with this error code; `ok` for those without an error.",
    "trace": "Only the requests of this trace, by its id.",
    "slow": "`true`: only slow requests; with `failed`, failed and slow ones.",
    "failed": "`true`: only requests that failed through the gateway or workers.",
    "brief": "`true`: without steps, ranking, failed attempts and limits.",
    "limit": f"Largest number of requests, 1 to {LIMIT_MAX}; {LIMIT} by default.",
}


class RequestQueryProblem(ValueError):
    """A query parameter is not valid."""


def parse_request_query(parameters: Mapping[str, str]) -> RequestQuery:
    """Return the query that these parameters describe. Raises RequestQueryProblem."""
    unknown = next((name for name in parameters if name not in QUERY_PARAMETERS), None)
    if unknown is not None:
        known = ", ".join(QUERY_PARAMETERS)
        raise RequestQueryProblem(f"Unknown query parameter {unknown[:100]!r}; known here: {known}.")
    limit = whole_number(parameters.get("limit", str(LIMIT)), 1, LIMIT_MAX)
    if limit is None:
        raise RequestQueryProblem(f"limit: expected a whole number from 1 to {LIMIT_MAX}.")
    return RequestQuery(
        tenant=parameters.get("tenant"),
        model=parameters.get("model"),
        worker=parameters.get("worker"),
        code=parameters.get("code"),
        trace=parameters.get("trace"),
        slow=_flag(parameters, "slow"),
        failed=_flag(parameters, "failed"),
        limit=limit,
        brief=_flag(parameters, "brief"),
    )


def _flag(parameters: Mapping[str, str], name: str) -> bool:
    text = parameters.get(name, "false").lower()
    if text not in FLAGS:
        raise RequestQueryProblem(f"{name}: expected true or false.")
    return FLAGS[text]
